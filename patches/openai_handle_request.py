"""Reads what a chat or completion request carries, before anything is answered.

Target: ``OpenAIServingBase.handle_request``, SGLang 0.5.23. No extension point serves: the serving classes
see the headers but hand none of them on, and fields such as ``prompt_cache_key`` are parsed and dropped.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


async def admit(original: Any, serving: Any, request: Any, raw_request: Any) -> Any:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

    from sglang_agentcache.serving.http import admit_openai

    if isinstance(request, ChatCompletionRequest | CompletionRequest):
        await admit_openai(raw_request)
    return await original(serving, request, raw_request)


PATCH = Patch(
    target="sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
    kind="AROUND",
    hook=admit,
    versions=("0.5.23",),
    fingerprint="f47d3e8fad409f773a3c8cfc48246b8cbd00825b89ffe333796649065282ee62",
)
