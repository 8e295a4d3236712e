"""Reads what a ``/v1/responses`` request carries, before anything is answered.

Target: ``OpenAIServingResponses.create_responses``, SGLang 0.5.23. No extension point serves: it bypasses
``OpenAIServingBase.handle_request``, and its request class has no ``custom_params``. Its module imports
openai_harmony; where that is missing, SGLang serves without ``/v1/responses``.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


async def admit(original: Any, serving: Any, request: Any, raw_request: Any = None) -> Any:
    from sglang_agentcache.serving.http import admit_openai

    if raw_request is not None:
        await admit_openai(raw_request, response_id=request.request_id)
    return await original(serving, request, raw_request)


PATCH = Patch(
    target="sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses.create_responses",
    kind="AROUND",
    hook=admit,
    versions=("0.5.23",),
    fingerprint="c51f3d0635929bd7bf551726a98628c14d3dc8c69c07898a4a93911388f1887f",
    needs="openai_harmony",
)
