"""What the scheduler's time goes into, measured in rounds: in one, each trajectory inside has returned about once.

No SGLang import; every input is the same on every rank, and so is every figure.
"""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.25
"""Weight of the last round in what is measured: one round is a few dozen requests."""
FADING = 0.02
"""Weight that the cost of a token loses in a round: it changes with the length of contexts, not with the load."""
LEAST_REST = 0.05
"""Share of a round that counts as free of prefill, at least."""
UNCOUNTED_S = 0.1
"""So long steps that only decode go uncounted, one after the other: they add to no share."""
MIN_ROUND_S = 1.0
MAX_ROUND_S = 30.0
MIN_RETURNS = 4


@dataclass(frozen=True, slots=True)
class _Step:
    tokens: int = 0
    """Prefilled."""
    redone_share: float = 0.0
    idle: bool = False


@dataclass(slots=True)
class _Round:
    began: float
    goal: int = MIN_RETURNS
    """Returns that make it a whole round."""
    returns: int = 0
    histories: int = 0
    waste_s: float = 0.0
    idle_s: float = 0.0
    prefill_s: float = 0.0


class _CostOfTokens:
    """Seconds that one more token of prefill takes: least squares through the origin, so that long steps decide.

    What a step costs besides would make tokens of short ones look dear.
    """

    def __init__(self) -> None:
        self._seconds_tokens = self._tokens_tokens = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self._seconds_tokens += seconds * tokens
        self._tokens_tokens += tokens * tokens

    def fade(self) -> None:
        self._seconds_tokens *= 1 - FADING
        self._tokens_tokens *= 1 - FADING

    @property
    def seconds(self) -> float:
        return self._seconds_tokens / self._tokens_tokens if self._tokens_tokens else 0.0


class Load:
    """Measures.

    Args:
        overlapped: the scheduler plans a step while the one before it runs (SGLang 0.5.23,
            `Scheduler.event_loop_overlap`): what passes until the next plan is then the time of the step before.

    Attributes:
        waste: share of the time of the last rounds that went into re-prefill.
        idle: share of it in which there was nothing to run.
        stake: what losing everything would cost: the time that prefilling the whole histories of those that returned
            would have taken, over the time in which nothing was prefilled. Above 1 the machine could not keep up.
            None while nobody has returned.
        processed_tokens: prefilled since the start.
        redone_tokens: those of them that had been in the pool before.
    """

    def __init__(self, *, overlapped: bool = False) -> None:
        self.waste = self.idle = 0.0
        self.stake: float | None = None
        self.processed_tokens = self.redone_tokens = 0
        self._overlapped = overlapped
        self._running = self._planned = _Step(idle=True)
        self._round: _Round | None = None
        self._rounds = 0
        """Since somebody returned first."""
        self._cost = _CostOfTokens()
        self._seen = 0.0

    def passed(self, now: float) -> None:
        """Charge the time since the last call to what ran in it."""
        if self._round is None:
            self._round, self._seen = _Round(now), now
        elapsed, step = now - self._seen, self._running
        self._seen = now
        self._round.waste_s += elapsed * step.redone_share
        self._round.idle_s += elapsed * step.idle
        if step.tokens:
            self._round.prefill_s += elapsed
            self._cost.add(elapsed, step.tokens)

    def decodes_on(self, now: float) -> bool:
        """Whether a step that only decodes, like those before it, needs no count yet."""
        return not (
            self._running.tokens
            or self._running.idle
            or self._planned.tokens
            or self._planned.idle
            or now - self._seen >= UNCOUNTED_S
        )

    def runs(self, tokens: int, redone_tokens: int, returned: list[int], idle: bool) -> None:
        """What is planned from here to the next call of `passed`.

        Args:
            tokens: to prefill in this step; 0 if it only decodes.
            redone_tokens: those of them that a trajectory had in the pool before.
            returned: tokens of the history of each trajectory that was inside before and whose prompt is whole with
                this step.
            idle: there is nothing to run.
        """
        assert self._round is not None
        step = _Step(tokens, redone_tokens / tokens if tokens else 0.0, idle)
        self._running = self._planned if self._overlapped else step
        self._planned = step
        self._round.returns += len(returned)
        self._round.histories += sum(returned)
        self.processed_tokens += tokens
        self.redone_tokens += redone_tokens

    @property
    def round_over(self) -> bool:
        """Whether as many have returned as were inside when the round began, or it takes too long for that."""
        if self._round is None:
            return False
        elapsed = self._seen - self._round.began
        return elapsed >= MIN_ROUND_S and (self._round.returns >= self._round.goal or elapsed >= MAX_ROUND_S)

    def next_round(self, inside: int) -> None:
        """Update what is measured, and begin a round with ``inside`` trajectories."""
        past = self._round
        assert past is not None
        elapsed = self._seen - past.began
        self.waste += SMOOTHING * (past.waste_s / elapsed - self.waste)
        self.idle += SMOOTHING * (past.idle_s / elapsed - self.idle)
        if self._rounds or past.histories:
            self._rounds += 1
            rest_s = max(elapsed - past.prefill_s, LEAST_REST * elapsed)
            stake, before = past.histories * self._cost.seconds / rest_s, self.stake or 0.0
            self.stake = before + max(SMOOTHING, 1 / self._rounds) * (stake - before)
        self._cost.fade()
        self._round = _Round(self._seen, max(MIN_RETURNS, inside))
