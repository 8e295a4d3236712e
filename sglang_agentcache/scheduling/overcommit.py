"""How far the histories of the trajectories inside may exceed the pool, from what losing them costs.

Letting more trajectories in than the pool can hold keeps the machine busy while others wait for their tools, and
makes those that return prefill again what was evicted meanwhile. Once the pool is full, each token more inside is one
more that is prefilled again each time round. So whether that pays is decided by what is at stake (`Load.stake`): where
prefilling every history again would take less time than the machine has, it does, however many are inside; where it
would take several times as much, nothing beyond the pool pays. In between, the limit is a matter of degree.

That sets the limit; what was measured corrects it: the share of the time that re-prefill takes (`Load.waste`) says
that histories are larger than they are counted.

No SGLang import; every input is the same on every rank.
"""

from __future__ import annotations

import math

from .order import GREEDY

FULL = 0.8
"""Of a pool: histories that fit with what else is in it, outputs being written and growth beyond the mean."""
TARGET_WASTE = 0.1
"""Share of the time that may go into re-prefill where nothing beyond the pool pays."""
BEARABLE = 1.0
"""The stake up to which no limit is needed."""
STARVING = (GREEDY, "shortest-prefill-first")
"""Orders in which a return that lost much waits for as long as smaller ones come: they hold re-prefill back
themselves, so that more may be inside."""
STARVING_BEARABLE = 2.0
GAIN = 0.06
"""Growth of the correction in a round without any waste; twice the target shrinks it as much."""
MAX_SHRINK = 0.1
IDLE = 0.2
"""A machine that has nothing to do for this share of the time wastes nothing that anybody needs."""
HEADROOM = 1.5
"""The correction grows while so many times what is inside would exceed the limit."""
LEAST = 0.75
"""Of the correction."""
MOST_POOLS = 100.0
"""As good as no limit."""


def bearable(schedule: str) -> float:
    """The stake up to which no limit is needed under this `--schedule-policy`."""
    return STARVING_BEARABLE if schedule in STARVING else BEARABLE


def tolerance(stake: float | None, bearable: float = BEARABLE) -> float:
    """How many times what is right with everything at stake is right with this: 1 or more, and inf if bearable."""
    if stake is None:
        return 1.0
    return 1 / (1 - (bearable / stake) ** 2) if stake > bearable else math.inf


class Overcommit:
    """The limit.

    Args:
        bearable: stake up to which no limit is needed, see `bearable`.
        kept_pools: what the device or a lower tier holds of histories, in device pools: 1 without such a tier.

    Attributes:
        limit: what the histories inside may sum up to, in pools.
    """

    def __init__(self, bearable: float = BEARABLE, kept_pools: float = 1.0) -> None:
        self._bearable, self._kept_pools = bearable, kept_pools
        self._correction = 1.0
        self.limit = min(MOST_POOLS, FULL * kept_pools)

    def update(self, waste: float, idle: float, stake: float | None, footprint: float) -> None:
        """A round is over.

        Args:
            waste: as `Load.waste`.
            idle: as `Load.idle`.
            stake: as `Load.stake`.
            footprint: of the trajectories inside now, in pools.
        """
        allowed = tolerance(stake, self._bearable)
        target, expected = min(1.0, TARGET_WASTE * allowed), FULL * self._kept_pools * allowed
        change = GAIN * (1 - waste / target)
        if change < 0:
            # With more inside than the limit allows, what is measured is not what it leads to.
            if footprint <= self.limit:
                led_to = min(self._correction, footprint / expected)
                self._correction = max(LEAST, led_to * (1 + max(-MAX_SHRINK, change)))
        elif HEADROOM * footprint > self.limit and (self._correction < 1 or idle >= IDLE or stake is None):
            self._correction *= 1 + change
        self.limit = min(MOST_POOLS, expected * self._correction)
