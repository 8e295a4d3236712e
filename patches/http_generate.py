"""Reads what a ``/generate`` request carries, before anything is answered.

Target: ``http_server.serve_generate_request``, SGLang 0.5.23; the Vertex route ends here too. No extension
point serves: a streamed answer has sent its HTTP 200 when ``TokenizerManager.generate_request`` first runs,
too late for a 400, and the endpoint itself is bound to its route at import.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


async def admit(original: Any, obj: Any, request: Any) -> Any:
    from sglang_agentcache.serving.http import admit_generate

    admit_generate(obj, request)
    return await original(obj, request)


PATCH = Patch(
    target="sglang.srt.entrypoints.http_server.serve_generate_request",
    kind="AROUND",
    hook=admit,
    versions=("0.5.23",),
    fingerprint="4dbe7f4e15a9289815a9066c048330c3f7512254225d107de24c2d38387b9dab",
)
