"""How long one forward step takes: a roofline model with profiles, or coefficients measured on a server.

A prefill step takes ``max(compute, memory) + communication + overhead``:

* compute: ``2 * active parameters`` FLOPs per new token, plus attention, ``4 * layers * heads * head_dim``
  FLOPs for each pair of a new token and a token at or before it, over the GPU's dense BF16 peak times an
  efficiency;
* memory: the weights read once (of a mixture of experts the share that the batch touches) and the KV of every
  context, over the GPU's bandwidth times an efficiency;
* communication: two all-reduces of the hidden states per layer under tensor parallelism.

A decode step is the same with one new token per request: memory bound, so that it grows with the contexts in
the batch and hardly with its size. Efficiencies are typical of tuned kernels and are stated once, below. They
set the scale of the times; which tokens are resident depends on them only through the order of events.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

BYTES_PER_VALUE = 2
"""BF16 weights and KV."""
LINEAR_EFFICIENCY = 0.60
"""Share of peak FLOPs that large matrix products reach."""
EXPERT_EFFICIENCY = 0.35
"""The same for grouped products of a mixture of experts."""
ATTENTION_EFFICIENCY = 0.45
BANDWIDTH_EFFICIENCY = 0.80
STEP_OVERHEAD_S = 0.0015
"""Scheduling, kernel launches and sampling that no overlap hides, per step."""
ALL_REDUCE_LATENCY_S = 12e-6
LINK_BYTES_S = 350e9
"""Effective NVLink bandwidth of one all-reduce."""
MEMORY_FRACTION = 0.87
"""Share of the GPU's memory for weights and KV (SGLang's --mem-fraction-static, about)."""


@dataclass(frozen=True)
class Model:
    """What the cost of a token depends on. Parameter counts in total and active per token."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float
    active_parameters: float
    experts: int = 1
    experts_per_token: int = 1
    tp: int = 1
    window: int = 262_144

    @property
    def kv_bytes(self) -> int:
        """KV bytes of one token, over all layers and ranks."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


@dataclass(frozen=True)
class Gpu:
    """One accelerator: dense BF16 FLOP/s, memory bytes/s and bytes."""

    name: str
    flops: float
    bandwidth: float
    memory: float


# Architectures from the models' public config.json.
MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("qwen3-8b", 36, 4096, 32, 8, 128, 8.19e9, 8.19e9, window=131_072),
        Model("qwen3-coder-30b-a3b", 48, 2048, 32, 4, 128, 30.5e9, 3.3e9, experts=128, experts_per_token=8),
        Model("qwen2.5-coder-32b", 64, 5120, 40, 8, 128, 32.8e9, 32.8e9, tp=2, window=131_072),
    )
}
# Vendor data sheets, SXM parts, without sparsity.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100", 989e12, 3.35e12, 80e9),
        Gpu("h200", 989e12, 4.8e12, 141e9),
        Gpu("h20", 148e12, 4.0e12, 96e9),  # much bandwidth, little compute: prefill is 6.7 times slower
    )
}


class CostModel(ABC):
    """Durations of steps, in seconds. Deterministic: the same step always takes the same time."""

    name: str
    request_s: float = 0.0
    """Time outside the scheduler per request (HTTP, tokenising), before it is queued."""

    @abstractmethod
    def prefill(self, extends: Sequence[tuple[int, int]]) -> float:
        """One prefill step. ``extends``: per request (tokens already resident, new tokens)."""

    @abstractmethod
    def decode(self, batch: int, context_tokens: int, steps: int) -> np.ndarray:
        """Durations of ``steps`` consecutive decode steps of ``batch`` requests.

        ``context_tokens``: KV of the whole batch in the first step; it grows by ``batch`` each step.
        """


def _pairs(extends: Sequence[tuple[int, int]]) -> float:
    """Attended (query, key) pairs: each new token sees what is resident and the new ones up to itself."""
    return sum(new * (resident + (new + 1) / 2) for resident, new in extends)


class RooflineCost(CostModel):
    """A model on a GPU (times its tensor-parallel width); see the module's description."""

    def __init__(self, model: Model, gpu: Gpu) -> None:
        self.model, self.gpu = model, gpu
        self.name = (
            f"{model.name} on {model.tp} x {gpu.name}" if model.tp > 1 else f"{model.name} on {gpu.name}"
        )
        efficiency = LINEAR_EFFICIENCY if model.experts == 1 else EXPERT_EFFICIENCY
        peak = gpu.flops * model.tp
        self._token_s = 2 * model.active_parameters / (peak * efficiency)
        self._pair_s = 4 * model.layers * model.heads * model.head_dim / (peak * ATTENTION_EFFICIENCY)
        bandwidth = gpu.bandwidth * model.tp * BANDWIDTH_EFFICIENCY
        self._weights_s = model.parameters * BYTES_PER_VALUE / bandwidth
        self._context_s = model.kv_bytes / bandwidth
        wide = model.tp > 1
        self._link_token_s = 2 * model.layers * model.hidden * BYTES_PER_VALUE / LINK_BYTES_S if wide else 0.0
        self._link_s = 2 * model.layers * ALL_REDUCE_LATENCY_S if wide else 0.0

    def _weights(self, tokens: int) -> float:
        """Seconds to read the weights that a batch of ``tokens`` touches; experts are chosen at random."""
        model = self.model
        if model.experts == 1:
            return self._weights_s
        missed = (1 - model.experts_per_token / model.experts) ** tokens
        # What is not in the experts is read always: what is active less the active share of the experts.
        share = model.experts_per_token / model.experts
        always = (model.active_parameters - share * model.parameters) / (1 - share) / model.parameters
        return self._weights_s * (always + (1 - always) * (1 - missed))

    def prefill(self, extends: Sequence[tuple[int, int]]) -> float:
        tokens = sum(new for _, new in extends)
        compute = tokens * self._token_s + _pairs(extends) * self._pair_s
        memory = self._weights(tokens) + sum(resident + new for resident, new in extends) * self._context_s
        return max(compute, memory) + tokens * self._link_token_s + self._link_s + STEP_OVERHEAD_S

    def decode(self, batch: int, context_tokens: int, steps: int) -> np.ndarray:
        contexts = context_tokens + batch * np.arange(steps, dtype=np.float64)
        compute = batch * self._token_s + contexts * self._pair_s
        memory = self._weights(batch) + contexts * self._context_s
        return np.maximum(compute, memory) + batch * self._link_token_s + self._link_s + STEP_OVERHEAD_S

    def capacity_tokens(self) -> int:
        """Tokens of KV that fit beside the weights, on all ranks together."""
        room = self.gpu.memory * self.model.tp * MEMORY_FRACTION - self.model.parameters * BYTES_PER_VALUE
        return int(room // self.model.kv_bytes)


@dataclass(frozen=True)
class Coefficients:
    """Linear costs measured on a server, in seconds; the keys of a ``measured`` profile's JSON object."""

    prefill_step_s: float
    prefill_token_s: float
    decode_step_s: float
    prefill_pair_s: float = 0.0
    """Per pair of a new token and a token it attends to."""
    decode_request_s: float = 0.0
    decode_context_s: float = 0.0
    """Per token of context in the batch."""
    request_s: float = 0.0


class MeasuredCost(CostModel):
    """Steps that cost what was measured: linear in tokens, pairs, requests and contexts."""

    def __init__(self, coefficients: Coefficients, name: str = "measured") -> None:
        self.coefficients, self.name = coefficients, name
        self.request_s = coefficients.request_s

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> MeasuredCost:
        """Read a profile. Raises ValueError naming the key that is missing, unknown or out of range."""
        with open(path, encoding="utf-8") as file:
            try:
                given = json.load(file)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: not JSON: {error}") from None
        known = {field.name for field in fields(Coefficients)}
        if not isinstance(given, dict) or given.keys() - known:
            raise ValueError(f"{path}: a JSON object with keys out of {', '.join(sorted(known))}")
        for key, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"{path}: {key}: seconds of at least 0; got {value!r}")
        try:
            return cls(Coefficients(**given), name=f"measured ({os.path.basename(path)})")
        except TypeError as error:
            raise ValueError(f"{path}: {str(error).partition('() ')[2]}") from None

    def prefill(self, extends: Sequence[tuple[int, int]]) -> float:
        use = self.coefficients
        tokens = sum(new for _, new in extends)
        return use.prefill_step_s + use.prefill_token_s * tokens + use.prefill_pair_s * _pairs(extends)

    def decode(self, batch: int, context_tokens: int, steps: int) -> np.ndarray:
        use = self.coefficients
        contexts = context_tokens + batch * np.arange(steps, dtype=np.float64)
        return use.decode_step_s + use.decode_request_s * batch + use.decode_context_s * contexts


def roofline(model: str, gpu: str) -> RooflineCost:
    """A profile by names. Raises ValueError naming those there are."""
    if model not in MODELS:
        raise ValueError(f"--model: allowed are {', '.join(MODELS)}; got {model!r}")
    if gpu not in GPUS:
        raise ValueError(f"--gpu: allowed are {', '.join(GPUS)}; got {gpu!r}")
    return RooflineCost(MODELS[model], GPUS[gpu])
