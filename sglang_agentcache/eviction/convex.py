"""Our order: the chunk whose loss is expected to cost least.

What a trajectory has to prefill again when it returns costs more per token the more of it is missing:
attention, and the queue behind it. So one more missing chunk costs about `(missing + chunk) ** exponent`, and
it costs that only if the trajectory returns while the chunk would still have been there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from sglang_agentcache.predictor.duration import PreparedWait

from .base import IdleTrajectory
from .ranked import REBUILD_INTERVAL, RankedPolicy, prepared_waits, said_left

EXPONENT = 0.25
"""Chosen in the simulator: shorter tails than `rr` at a smaller cost in the mean than 0.5 (docs/results.md)."""
CHUNK_TOKENS = 1024.0
SHORTEST_TURNOVER_S, LONGEST_TURNOVER_S = 5.0, 600.0
FIRST_TURNOVER_S = 60.0
"""Until evictions have shown how fast the pool turns over."""
RATE_MEMORY_S = 60.0

RATES = ("discounted", "inverse")


class Convex(RankedPolicy):
    """The smallest `return_rate * (missing_tokens + chunk) ** exponent` loses its next tail chunk.

    Args:
        exponent: 0 is `predictive`'s order; larger spreads losses more evenly, like `rr`.
        rate: "discounted" is E[exp(-R / tau)], R the idle time left; "inverse" is 1 / E[R].
        tau_s: seconds, about the time in which the pool turns over; None measures it.
        estimator, predictor, rebuild_interval: as in `RankedPolicy`.
    """

    name: ClassVar[str] = "convex"

    def __init__(
        self,
        exponent: float = EXPONENT,
        rate: str = "discounted",
        tau_s: float | None = None,
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
        super().__init__(estimator, predictor, rebuild_interval)
        self.exponent = float(exponent)
        self.rate = rate
        self.tau_s = tau_s
        self._recent_tokens = 0.0
        self._capacity_tokens = 0
        self._counted_at: float | None = None
        self._counting_since = 0.0

    def scores(self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray, now: float) -> np.ndarray:
        missing = np.array([trajectory.missing_tokens for trajectory in trajectories], dtype=np.float64)
        chunks = (missing + CHUNK_TOKENS) / CHUNK_TOKENS
        return np.asarray(self._return_rate(trajectories, elapsed_s) * chunks**self.exponent)

    def evicted(self, tokens: int, capacity_tokens: int, now: float) -> None:
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

    def _return_rate(self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray) -> np.ndarray:
        if self.rate == "inverse":
            return np.asarray(1.0 / np.maximum(self.remaining_s(trajectories, elapsed_s, None), 1e-3))
        tau = self.turnover_s
        waits: list[PreparedWait | None] = prepared_waits(trajectories)
        predicted = np.asarray(self.predictor.return_rate(waits, elapsed_s, tau))
        said = said_left(trajectories, elapsed_s)
        return np.where(np.isnan(said), predicted, np.exp(-np.nan_to_num(said) / tau))
