"""An SGLang plugin for tests: the one thing that keeps DP attention from running without a GPU.

SGLang 0.5.23 pads the batches of DP attention with a value that it asks the attention backend for; the CPU's
(`TorchNativeAttnBackend`) has no such method, and any server with `--enable-dp-attention` ends at its first request.
"""

from __future__ import annotations


def activate() -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    # As the CUDA backends answer: a padded request is one token long.
    TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: 1
