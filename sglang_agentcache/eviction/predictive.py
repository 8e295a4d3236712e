"""CacheWise's order: the trajectory whose next use is furthest away goes first (arXiv 2606.16824, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from .base import IdleTrajectory
from .ranked import RankedPolicy


class Predictive(RankedPolicy):
    """The longest expected idle time left, E[T - e | T > e], loses its next tail chunk."""

    name: ClassVar[str] = "predictive"

    def urgencies(self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray) -> np.ndarray:
        return -np.asarray(self.remaining_s(trajectories, elapsed_s, horizon=None))
