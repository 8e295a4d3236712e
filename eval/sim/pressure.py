"""Demand for KV over time: of requests in flight, and of all live trajectories (RR-EVICT figure 4)."""

from __future__ import annotations

from typing import Any

from eval.trace import Trajectory

POINTS = 600
"""A run's series is thinned to this many points."""


class _Held:
    """Tokens of a set of trajectories, each shared prefix counted once; O(1) to change and to read."""

    def __init__(self) -> None:
        self._private: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self.tokens = 0

    def put(self, trajectory: Trajectory, private: int) -> None:
        """The trajectory holds ``private`` tokens behind its shared prefix."""
        known = self._private.get(trajectory.trajectory_id)
        self._private[trajectory.trajectory_id] = private
        self.tokens += private - (known or 0)
        prefix = trajectory.shared_prefix_id
        if known is None and prefix is not None:
            self._users[prefix] = self._users.get(prefix, 0) + 1
            if self._users[prefix] == 1:
                self.tokens += trajectory.shared_prefix_tokens

    def drop(self, trajectory: Trajectory) -> None:
        """The trajectory holds nothing any more."""
        private = self._private.pop(trajectory.trajectory_id, None)
        if private is None:
            return
        self.tokens -= private
        prefix = trajectory.shared_prefix_id
        if prefix is not None:
            self._users[prefix] -= 1
            if not self._users[prefix]:
                self.tokens -= trajectory.shared_prefix_tokens


class Demand:
    """KV of live trajectories in tokens."""

    def __init__(self) -> None:
        self._active, self._live = _Held(), _Held()
        self._series: list[tuple[float, int, int, int, int]] = []

    def sent(self, trajectory: Trajectory, context: int) -> None:
        """A request is in flight whose prompt and output have ``context`` tokens."""
        private = max(0, context - trajectory.shared_prefix_tokens)
        self._active.put(trajectory, private)
        self._live.put(trajectory, private)

    def answered(self, trajectory: Trajectory, last: bool) -> None:
        """Its answer is complete; ``last``: the trajectory is over."""
        self._active.drop(trajectory)
        if last:
            self._live.drop(trajectory)

    @property
    def active_tokens(self) -> int:
        return self._active.tokens

    @property
    def live_tokens(self) -> int:
        return self._live.tokens

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
