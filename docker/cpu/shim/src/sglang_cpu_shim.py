"""SGLang plugin (entry point group ``sglang.srt.plugins``): what SGLang 0.5.23 takes for granted of a GPU.

Plain serving on the CPU needs none of it; prefill/decode disaggregation (mooncake over TCP, NIXL) and HiCache
do. Inactive unless ``SGLANG_USE_CPU_ENGINE=1`` is set and no GPU is there.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NIXL_METHODS = ("register_memory", "get_reg_descs", "get_xfer_descs", "prep_xfer_dlist")


def activate() -> None:
    """Register the hooks. Called by SGLang in each of its processes."""
    if os.getenv("SGLANG_USE_CPU_ENGINE") != "1":
        return
    import torch

    if torch.cuda.is_available():
        return
    # disaggregation/prefill.py makes a torch.cuda.Event for the early send of a cached prefix (overlap
    # scheduler); a CPU torch only has a placeholder that raises.
    torch.cuda.Event = torch.cpu.Event  # type: ignore[assignment,misc]

    import sglang.srt.mem_cache.pool_host.mha as host_pool
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.disaggregation.utils.get_kv_class", _get_kv_class, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.common._cuda_host_register", _no_host_register, HookType.REPLACE
    )
    host_pool.transfer_kv_direct = transfer_kv_direct


def _get_kv_class(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``disaggregation.utils.get_kv_class``: make the transfer class fit for host memory."""
    kv_class = original(*args, **kwargs)
    # Otherwise the sender asks the prefill scheduler for page indices in pinned memory (_send_kv_chunk).
    if getattr(kv_class, "supports_host_tensor_indices", False):
        kv_class.supports_host_tensor_indices = False
    if "disaggregation.nixl" in getattr(kv_class, "__module__", ""):
        _nixl_host_memory()
    return kv_class


def _nixl_host_memory() -> None:
    """SGLang registers its KV buffers with NIXL as "VRAM"; UCX refuses host pointers under that name."""
    from nixl._api import nixl_agent

    if getattr(nixl_agent, "_sglang_cpu_shim", False):
        return
    nixl_agent._sglang_cpu_shim = True

    def host(value: Any) -> Any:
        return "DRAM" if isinstance(value, str) and value == "VRAM" else value

    def on_host(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*map(host, args), **{key: host(value) for key, value in kwargs.items()})

        return call

    for name in _NIXL_METHODS:
        if hasattr(nixl_agent, name):
            setattr(nixl_agent, name, on_host(getattr(nixl_agent, name)))


def _no_host_register(buffer: Any, registration_granularity_bytes: int | None = None) -> None:
    """Replaces ``_cuda_host_register``: without a GPU there is nothing to pin memory for."""


def transfer_kv_direct(
    src_layers: Sequence["torch.Tensor"],
    dst_layers: Sequence["torch.Tensor"],
    src_indices: "torch.Tensor",
    dst_indices: "torch.Tensor",
    page_size: int,
) -> None:
    """``sgl_kernel.kvcacheio.transfer_kv_direct`` in PyTorch, for the ``layer_first`` host layout.

    Args:
        src_layers: One ``(slots, heads, head_dim)`` tensor per layer (keys, then values).
        dst_layers: The same, on the other tier.
        src_indices: ``(tokens,)`` slots to read, token by token; a page's tokens are adjacent.
        dst_indices: ``(tokens,)`` slots to write.
        page_size: Unused: the indices already name every token.
    """
    src, dst = src_indices.long().cpu(), dst_indices.long().cpu()
    for src_layer, dst_layer in zip(src_layers, dst_layers, strict=True):
        dst_layer[dst] = src_layer[src]
