"""RR-EVICT's order: visit idle trajectories in turn (arXiv 2609.32278, section 3.2)."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import ClassVar, Literal

from .base import EvictionPolicy, IdleTrajectory

Tiers = Literal["auto", "on", "off"]

FIRST_TIER_GAPS = 8.0
"""A trajectory idle for more than this many typical gaps is in a colder tier. Our choice: the paper gives none."""
TIER_GROWTH = 4.0
"""Each colder tier begins at this multiple of the one before."""
TIER_COUNT = 8
GAPS_NEEDED = 20
"""Observed returns before a gap counts as typical; until then there is one tier."""
GAP_MEMORY = 0.02
"""Weight of a new gap in the running mean of log gaps."""
SHORTEST_GAP_S = 0.1


class RoundRobin(EvictionPolicy):
    """One tail chunk from each idle trajectory in turn; a trajectory that turns idle joins at the end.

    Args:
        tiers: recency tiers, for servers that get no completion signals: trajectories idle for much
            longer than their peers form colder tiers; the coldest goes first, round-robin inside a tier.
            "auto" uses them until the first completion signal arrives.

    Every operation is O(log n) amortised in the number n of idle trajectories.
    """

    name: ClassVar[str] = "rr"

    def __init__(self, tiers: Tiers = "auto") -> None:
        if tiers not in ("auto", "on", "off"):
            raise ValueError(f'\'tiers\' must be "auto", "on" or "off", got {tiers!r}')
        self.tiers = tiers
        self._rounds: list[OrderedDict[int, IdleTrajectory]] = [OrderedDict() for _ in range(TIER_COUNT)]
        # Per tier a heap of (idle_since, serial): the next one to grow cold is the first. Entries of those
        # that have left stay until they come up, or outnumber the others.
        self._ages: list[list[tuple[float, int]]] = [[] for _ in range(TIER_COUNT)]
        self._tier_of: dict[int, int] = {}
        self._log_gap = 0.0
        self._gaps = 0
        self._signalled = False

    def join(self, trajectory: IdleTrajectory, now: float) -> None:
        self._put(trajectory, 0)

    def leave(self, trajectory: IdleTrajectory) -> None:
        tier = self._tier_of.pop(trajectory.serial, None)
        if tier is not None:
            del self._rounds[tier][trajectory.serial]

    def victim(self, now: float) -> IdleTrajectory | None:
        self._cool(now)
        for rounds in reversed(self._rounds):
            if rounds:
                return next(iter(rounds.values()))
        return None

    def visited(self, trajectory: IdleTrajectory, now: float) -> None:
        tier = self._tier_of.get(trajectory.serial)
        if tier is not None:
            self._rounds[tier].move_to_end(trajectory.serial)

    def __len__(self) -> int:
        return len(self._tier_of)

    def returned(self, trajectory: IdleTrajectory, idle_s: float) -> None:
        log_gap = math.log(max(idle_s, SHORTEST_GAP_S))
        self._gaps += 1
        self._log_gap += (log_gap - self._log_gap) * max(GAP_MEMORY, 1.0 / self._gaps)

    def completion_signalled(self) -> None:
        self._signalled = True

    @property
    def tiered(self) -> bool:
        """Whether recency tiers are in force now."""
        wanted = self.tiers == "on" or (self.tiers == "auto" and not self._signalled)
        return wanted and self._gaps >= GAPS_NEEDED

    def _put(self, trajectory: IdleTrajectory, tier: int) -> None:
        self._tier_of[trajectory.serial] = tier
        self._rounds[tier][trajectory.serial] = trajectory
        ages = self._ages[tier]
        heapq.heappush(ages, (trajectory.idle_since, trajectory.serial))
        if len(ages) > 2 * len(self._rounds[tier]) + TIER_COUNT:
            ages[:] = [(other.idle_since, serial) for serial, other in self._rounds[tier].items()]
            heapq.heapify(ages)

    def _cool(self, now: float) -> None:
        """Move trajectories whose idle time has outgrown their tier into the next one."""
        if not self.tiered:
            return
        limit = math.exp(self._log_gap) * FIRST_TIER_GAPS
        for tier in range(TIER_COUNT - 1):
            ages, rounds = self._ages[tier], self._rounds[tier]
            while ages and now - ages[0][0] > limit:
                idle_since, serial = heapq.heappop(ages)
                trajectory = rounds.get(serial)
                if trajectory is not None and trajectory.idle_since == idle_since:
                    self.leave(trajectory)
                    self._put(trajectory, tier + 1)
            limit *= TIER_GROWTH
