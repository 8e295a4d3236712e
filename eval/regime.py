"""Was a run in the regime where policies differ? Active KV fits the pool, active plus idle does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from eval.records import RequestRecord


@dataclass(frozen=True)
class Regime:
    """Shares of the pool, over the moments at which requests were sent (RR-EVICT figure 4)."""

    active_p50: float
    active_max: float
    live_p50: float
    live_max: float

    @property
    def holds(self) -> bool:
        """Peak active demand fits, and for at least half of the requests active plus idle does not."""
        return self.active_max <= 1.0 < self.live_p50

    def describe(self) -> str:
        """One line for the log."""
        verdict = "the paper's regime" if self.holds else "NOT the paper's regime"
        return (
            f"active KV {self.active_p50:.2f} (median) to {self.active_max:.2f} (peak) of the pool, "
            f"active + idle {self.live_p50:.2f} to {self.live_max:.2f}: {verdict}"
        )

    def as_dict(self) -> dict[str, float | bool]:
        return {**{name: round(value, 4) for name, value in asdict(self).items()}, "holds": self.holds}


def measure(requests: Sequence[RequestRecord], pool_tokens: int) -> Regime:
    """Pressure seen by a run's requests. Raises ValueError if there are none."""
    if not requests:
        raise ValueError("no requests were sent")
    active = np.array([record.active_tokens for record in requests]) / pool_tokens
    live = np.array([record.live_tokens for record in requests]) / pool_tokens
    return Regime(float(np.median(active)), float(active.max()), float(np.median(live)), float(live.max()))
