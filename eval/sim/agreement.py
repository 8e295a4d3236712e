"""How far simulations are from a server: statistics of uncached tokens per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.records import RequestRecord


@dataclass(frozen=True)
class Agreement:
    """One statistic of uncached tokens per request: measured, and the mean over simulations."""

    statistic: str
    server: float
    simulator: float
    spread: float
    """Standard deviation over the simulations, as a share of their mean."""

    @property
    def error(self) -> float:
        """Relative to the server."""
        return abs(self.simulator - self.server) / max(self.server, 1.0)

    def line(self, name: str) -> str:
        """For the log."""
        return (
            f"{name:16s} uncached {self.statistic:5s} {self.server:8.1f} {self.simulator:8.1f} "
            f"+-{self.spread:6.2%}  error {self.error:6.2%}"
        )


STATISTICS = {"p50": 50.0, "p99": 99.0, "mean": None}


def _statistic(requests: Sequence[RequestRecord], percentile: float | None) -> float:
    values = [item.uncached_tokens for item in requests]
    return float(np.mean(values) if percentile is None else np.percentile(values, percentile))


def agreements(
    server: Sequence[RequestRecord], simulations: Sequence[Sequence[RequestRecord]]
) -> list[Agreement]:
    """P50, P99 and mean. Raises ValueError if the requests are not the same."""

    def keys(run: Sequence[RequestRecord]) -> list[tuple[str, int, int]]:
        return sorted((item.trajectory_id, item.turn, item.prompt_tokens) for item in run)

    found = []
    for simulated in simulations:
        if keys(server) != keys(simulated):
            raise ValueError(
                f"not the same requests: {len(server)} on the server, {len(simulated)} simulated"
            )
    for name, percentile in STATISTICS.items():
        values = [_statistic(simulated, percentile) for simulated in simulations]
        mean = float(np.mean(values))
        spread = float(np.std(values, ddof=1)) / max(mean, 1.0) if len(values) > 1 else 0.0
        found.append(Agreement(name, _statistic(server, percentile), mean, spread))
    return found
