"""Demand for KV over time: of requests in flight, and of all live trajectories (RR-EVICT figure 4)."""

from __future__ import annotations

from typing import Any

from eval.trace import Trajectory

POINTS = 600
"""A run's series is thinned to this many points."""


class Demand:
    """KV of live trajectories in tokens, each shared prefix counted once."""

    def __init__(self) -> None:
        self._active: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._prefix: dict[str, tuple[str, int]] = {}
        self._series: list[tuple[float, int, int, int, int]] = []

    def sent(self, trajectory: Trajectory, context: int) -> None:
        """A request is in flight whose prompt and output have ``context`` tokens."""
        private = context - trajectory.shared_prefix_tokens
        self._active[trajectory.trajectory_id] = self._live[trajectory.trajectory_id] = private
        if trajectory.shared_prefix_id is not None:
            size = trajectory.shared_prefix_tokens
            self._prefix[trajectory.trajectory_id] = (trajectory.shared_prefix_id, size)

    def answered(self, trajectory: Trajectory, last: bool) -> None:
        """Its answer is complete; ``last``: the trajectory is over."""
        self._active.pop(trajectory.trajectory_id, None)
        if last:
            self._live.pop(trajectory.trajectory_id, None)
            self._prefix.pop(trajectory.trajectory_id, None)

    @property
    def active_tokens(self) -> int:
        return sum(self._active.values()) + self._shared(self._active)

    @property
    def live_tokens(self) -> int:
        return sum(self._live.values()) + self._shared(self._live)

    def _shared(self, ids: dict[str, int]) -> int:
        sizes: dict[str, int] = {}
        for key in ids:
            if key in self._prefix:
                prefix, size = self._prefix[key]
                sizes[prefix] = max(size, sizes.get(prefix, 0))
        return sum(sizes.values())

    def sample(self, now: float, used: int, evictable: int) -> None:
        """Note the demand, and what the pool really holds."""
        self._series.append((now, self.active_tokens, self.live_tokens, used, evictable))

    def series(self, capacity_tokens: int) -> dict[str, Any]:
        """Columns: time, demand of active and of idle trajectories, pool used and evictable; tokens."""
        stride = max(1, -(-len(self._series) // POINTS))
        points = self._series[::stride]
        return {
            "capacity_tokens": capacity_tokens,
            "t_s": [round(now, 3) for now, *_ in points],
            "active_tokens": [active for _, active, *_ in points],
            "idle_tokens": [live - active for _, active, live, *_ in points],
            "used_tokens": [used for *_, used, _ in points],
            "evictable_tokens": [evictable for *_, evictable in points],
        }
