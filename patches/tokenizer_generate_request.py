"""Packs what a request carries into the sampling parameters that go to the scheduler.

Target: ``TokenizerManager.generate_request``, SGLang 0.5.23: every endpoint, the Engine and gRPC meet here.
No extension point serves: ``sampling_params_class`` sees neither the HTTP request nor a batch.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


def pack(original: Any, manager: Any, obj: Any, request: Any = None) -> Any:
    from sglang.srt.managers.io_struct import GenerateReqInput

    from sglang_agentcache.serving.http import pack_into

    if isinstance(obj, GenerateReqInput):
        pack_into(obj, request)
    return original(manager, obj, request)


PATCH = Patch(
    target="sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
    kind="AROUND",
    hook=pack,
    versions=("0.5.23",),
    fingerprint="894e0b7b045095200ca7ab30150bdcc7ef605c759d5d487d95427c473cf61f0a",
)
