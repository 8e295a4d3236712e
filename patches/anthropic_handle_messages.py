"""Reads what a ``/v1/messages`` request carries, before anything is answered.

Target: ``AnthropicServing.handle_messages``, SGLang 0.5.23. No extension point serves: the conversion to a
chat request drops ``metadata``, and the request class has neither ``session_id`` nor ``custom_params``.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


async def admit(original: Any, serving: Any, request: Any, raw_request: Any) -> Any:
    from sglang_agentcache.serving.http import admit_openai

    await admit_openai(raw_request)
    return await original(serving, request, raw_request)


PATCH = Patch(
    target="sglang.srt.entrypoints.anthropic.serving.AnthropicServing.handle_messages",
    kind="AROUND",
    hook=admit,
    versions=("0.5.23",),
    fingerprint="9279e86762ccf4c8f387a1761733d11a4116e1299c47fe4888edca707ec12c3f",
)
