"""Import-only stand-in for the CUDA-only ``sgl_kernel`` (distribution ``sglang-kernel``).

With ``SGLANG_USE_CPU_ENGINE=1`` SGLang 0.5.23 imports names from it at module level (for one,
``copy_all_layer_kv_cache_cpu`` in ``kernels/ops/kvcache/cache_move.py``). None of them is called on the
``torch_native`` attention path, which SGLang takes because no ``torch.ops.sgl_kernel`` op is registered here.
"""

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Any public name is a function that says, when called, that it is missing."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} does not exist on a CPU install")

    missing.__name__ = name
    return missing
