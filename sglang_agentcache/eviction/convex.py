"""Our order: the chunk whose loss is expected to cost least for the memory that it gives back.

A chunk kept costs memory until its trajectory returns, and then saves a prefill. So it is worth its saving
times the best chance of a return per second of waiting. The saving is the chunk itself, and more the more of
its history the trajectory would miss besides: attention, the queue behind it, and the few that miss far more
than the others are the tail of the waiting times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from sglang_agentcache.predictor.duration import PreparedWait

from .base import IdleTrajectory
from .ranked import REBUILD_INTERVAL, RankedPolicy, prepared_waits, said_left

EXPONENT = 2.0
DELAY_S = 0.2
"""Chosen with the exponent in the simulator, and confirmed with other seeds (docs/results.md)."""
CHUNK_TOKENS = 1024
SHORTEST_TURNOVER_S, LONGEST_TURNOVER_S = 5.0, 600.0
FIRST_TURNOVER_S = 60.0
"""Until evictions have shown how fast the pool turns over."""
RATE_MEMORY_S = 60.0

RATES = ("index", "discounted", "inverse")


class Convex(RankedPolicy):
    """The smallest `return_rate * (1 + (missing / typical) ** exponent)` loses its next tail chunk.

    `missing` is what the trajectory would miss without that chunk, `typical` the mean that the idle ones miss.

    Args:
        exponent: 0 is the order of the return rate alone, like `predictive`; a larger one spares those that
            would miss much more than the others; equal rates spread evenly, like `rr`.
        rate: "index" is the best chance of a return per second of waiting (`survival.return_index`);
            "discounted" is E[exp(-R / tau)], R the idle time left; "inverse" is 1 / E[R].
        tau_s: seconds, about the time in which the pool turns over, for "discounted"; None measures it.
        chunk_tokens: of one cut, 0 for all that is left; the server's own setting.
        estimator, predictor, rebuild_interval: as in `RankedPolicy`.
    """

    name: ClassVar[str] = "convex"

    def __init__(
        self,
        exponent: float = EXPONENT,
        rate: str = "index",
        tau_s: float | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        estimator: str | None = None,
        predictor: str | None = None,
        rebuild_interval: int = REBUILD_INTERVAL,
    ) -> None:
        if isinstance(exponent, bool) or not isinstance(exponent, int | float) or not 0 <= exponent <= 8:
            raise ValueError(f"'exponent' must be a number from 0 to 8, got {exponent!r}")
        if rate not in RATES:
            raise ValueError(f"'rate' must be one of {', '.join(RATES)}, got {rate!r}")
        if tau_s is not None and (
            isinstance(tau_s, bool) or not isinstance(tau_s, int | float) or not 0 < tau_s < math.inf
        ):
            raise ValueError(f"'tau_s' must be a positive number of seconds, got {tau_s!r}")
        if isinstance(chunk_tokens, bool) or not isinstance(chunk_tokens, int) or chunk_tokens < 0:
            raise ValueError(f"'chunk_tokens' must be an integer of at least 0, got {chunk_tokens!r}")
        super().__init__(estimator, predictor, rebuild_interval)
        self.exponent = float(exponent)
        self.rate = rate
        self.tau_s = tau_s
        self.chunk_tokens = chunk_tokens
        self._typical_missing = float(CHUNK_TOKENS)
        self._recent_tokens = 0.0
        self._capacity_tokens = 0
        self._counted_at: float | None = None
        self._counting_since = 0.0

    def urgencies(self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray) -> np.ndarray:
        """The return rate, as `rate` says."""
        if self.rate == "inverse":
            return np.asarray(1.0 / np.maximum(self.remaining_s(trajectories, elapsed_s, None), 1e-3))
        waits: list[PreparedWait | None] = prepared_waits(trajectories)
        said = said_left(trajectories, elapsed_s)
        unknown = np.isnan(said)
        left = np.where(unknown, 0.0, said)
        if self.rate == "index":
            predicted = self.predictor.return_index(waits, elapsed_s, DELAY_S)
            declared = 1.0 / (left + DELAY_S)
        else:
            predicted = self.predictor.return_rate(waits, elapsed_s, self.turnover_s)
            declared = np.exp(-left / self.turnover_s)
        return np.where(unknown, predicted, declared)

    def scores(self, trajectories: Sequence[IdleTrajectory], urgencies: np.ndarray) -> np.ndarray:
        chunk = self.chunk_tokens
        missing = np.array(
            [item.missing_tokens + (chunk or item.resident_tokens) for item in trajectories], dtype=np.float64
        )
        cost = 1.0 + (missing / self._typical_missing) ** self.exponent
        return np.asarray(urgencies * cost)

    def rebuild(self, trajectories: Sequence[IdleTrajectory], now: float) -> None:
        if trajectories:
            mean = sum(item.missing_tokens for item in trajectories) / len(trajectories)
            self._typical_missing = max(float(self.chunk_tokens or CHUNK_TOKENS), mean)
        super().rebuild(trajectories, now)

    def evicted(self, tokens: int, capacity_tokens: int, now: float) -> None:
        super().evicted(tokens, capacity_tokens, now)
        if self._counted_at is None:
            self._counted_at = self._counting_since = now
        self._recent_tokens *= math.exp(-(now - self._counted_at) / RATE_MEMORY_S)
        self._recent_tokens += tokens
        self._capacity_tokens = capacity_tokens
        self._counted_at = now

    @property
    def turnover_s(self) -> float:
        """Seconds in which evictions replace the whole pool, as measured over the last minute or so."""
        if self.tau_s is not None:
            return self.tau_s
        seen_s = 0.0 if self._counted_at is None else self._counted_at - self._counting_since
        if seen_s < SHORTEST_TURNOVER_S or self._recent_tokens <= 0:
            return FIRST_TURNOVER_S
        weight_s = RATE_MEMORY_S * (1.0 - math.exp(-seen_s / RATE_MEMORY_S))
        turnover = self._capacity_tokens * weight_s / self._recent_tokens
        return min(LONGEST_TURNOVER_S, max(SHORTEST_TURNOVER_S, turnover))
