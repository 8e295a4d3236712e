"""How far the histories of the trajectories inside may exceed the pool, regulated by what that costs.

Letting more trajectories in than the pool can hold keeps the machine busy while others wait for their tools, and
makes those that return prefill again what was evicted meanwhile. Up to some point the first outweighs the second;
where it lies depends on the model, the GPU and the tools. What is measured is the cost: the share of the time that
goes into prefilling a second time (`Load`). Below a target (`target_waste`), or while the machine has nothing to do,
the limit grows; above it, the limit shrinks, in proportion to the distance.

No SGLang import; every input is the same on every rank.
"""

from __future__ import annotations

from .order import GREEDY

TARGET_WASTE = 0.25
"""Share of the time that may go into re-prefill. With 0.15 the door cost up to 10 % where prefill is fast and
outputs are long (SWE-bench at 1.6 times the pool), with 0.25 up to 3 %, for a few points of the gain elsewhere."""
STARVING = (GREEDY, "shortest-prefill-first")
"""Orders in which a return that lost much waits for as long as smaller ones come: they hold re-prefill back
themselves, so that more may be inside."""
STARVING_TARGET_WASTE = 0.4
"""With 0.25 the door cost the greedy order up to 9 % (tau2 at 2.5 times the pool), with 0.4 up to 4 %."""
GAIN = 0.06
"""Growth of the limit in a round without any; twice the target shrinks it as much."""
MAX_SHRINK = 0.1
IDLE = 0.2
"""A machine that has nothing to do for this share of the time wastes nothing that anybody needs."""
IDLE_GROWTH = 0.25
"""Growth of the limit in a round with so much time to spare."""
START = 1.1
"""Before anything is measured: how trajectories grow, which the door learns, is not known either."""
HEADROOM = 1.5
"""The limit grows to so many times what is inside, at most."""
LEAST = 0.6
"""Below 1 only what was measured leads: then more is in the pool than the sum of histories tells, such as outputs
being written and prefixes that few share."""
SMOOTHING = 0.25
"""Weight of the last round in what is measured: one round is a few dozen requests."""
UNCOUNTED_S = 0.1
"""So long steps that only decode go uncounted, one after the other: they add to neither share."""
MIN_ROUND_S = 1.0
MAX_ROUND_S = 30.0
MIN_RETURNS = 4


def target_waste(schedule: str) -> float:
    """The share of the time that may go into re-prefill under this `--schedule-policy`."""
    return STARVING_TARGET_WASTE if schedule in STARVING else TARGET_WASTE


class Load:
    """Measures rounds: in one, each trajectory inside has returned about once.

    Attributes:
        waste: share of the time of the last rounds that went into re-prefill.
        idle: share of it in which there was nothing to run.
        processed_tokens: prefilled since the start.
        redone_tokens: those of them that had been in the pool before.
    """

    def __init__(self) -> None:
        self.waste = self.idle = 0.0
        self.processed_tokens = self.redone_tokens = 0
        self._waste_s = self._idle_s = 0.0
        self._returns, self._goal = 0, MIN_RETURNS
        self._began: float | None = None
        self._seen = 0.0
        self._redone_share = 0.0
        self._idle = True

    def passed(self, now: float) -> None:
        """Charge the time since the last call to what ran in it."""
        if self._began is None:
            self._began = self._seen = now
        elapsed = now - self._seen
        self._seen = now
        self._waste_s += elapsed * self._redone_share
        self._idle_s += elapsed * self._idle

    def decodes_on(self, now: float) -> bool:
        """Whether a step that only decodes, like the one before it, needs no count yet."""
        return not self._redone_share and not self._idle and now - self._seen < UNCOUNTED_S

    def runs(self, tokens: int, redone_tokens: int, returns: int, idle: bool) -> None:
        """What runs from here to the next call of `passed`.

        Args:
            tokens: to prefill in this step; 0 if it only decodes.
            redone_tokens: those of them that a trajectory had in the pool before.
            returns: requests of trajectories that were inside before, prefilled from this step on.
            idle: there is nothing to run.
        """
        self._redone_share = redone_tokens / tokens if tokens else 0.0
        self._idle = idle
        self._returns += returns
        self.processed_tokens += tokens
        self.redone_tokens += redone_tokens

    @property
    def round_over(self) -> bool:
        """Whether as many have returned as were inside when the round began, or it takes too long for that."""
        elapsed = self._seen - self._began if self._began is not None else 0.0
        return elapsed >= MIN_ROUND_S and (self._returns >= self._goal or elapsed >= MAX_ROUND_S)

    def next_round(self, inside: int) -> None:
        """Update `waste` and `idle`, and begin a round with ``inside`` trajectories."""
        assert self._began is not None
        elapsed = self._seen - self._began
        self.waste += SMOOTHING * (self._waste_s / elapsed - self.waste)
        self.idle += SMOOTHING * (self._idle_s / elapsed - self.idle)
        self._waste_s = self._idle_s = 0.0
        self._returns, self._goal = 0, max(MIN_RETURNS, inside)
        self._began = self._seen


class Overcommit:
    """The limit, as a multiple of the pool.

    Args:
        target: of `Load.waste`.

    Attributes:
        limit: what the histories inside may sum up to, in pools.
    """

    def __init__(self, target: float = TARGET_WASTE) -> None:
        self.limit = START
        self._target = target

    def update(self, waste: float, idle: float, footprint: float) -> None:
        """A round is over.

        Args:
            waste: as `Load.waste`.
            idle: as `Load.idle`.
            footprint: of the trajectories inside now, in pools.
        """
        change = GAIN * (1 - waste / self._target)
        if idle >= IDLE:
            self._grow(IDLE_GROWTH, footprint)
        elif change >= 0:
            self._grow(change, footprint)
        elif footprint <= self.limit:
            # With more inside than the limit allows, what is measured is not what it leads to.
            self.limit = max(LEAST, footprint * (1 + max(-MAX_SHRINK, change)))

    def starved(self) -> None:
        """There was nothing to run while somebody waited: the limit is too low."""
        self.limit *= 1 + GAIN

    def _grow(self, change: float, footprint: float) -> None:
        # Far above what is inside it means nothing, and would take long to come down.
        self.limit = max(self.limit, min(self.limit * (1 + change), max(START, HEADROOM * footprint)))
