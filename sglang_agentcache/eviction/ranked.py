"""An order of idle trajectories by a number that changes as time passes.

Shared by the policies that predict. What passing time changes (`urgencies`) is computed for many trajectories
together, once in `rebuild_interval` evictions (CacheWise, section 5.3), for up to `REFRESHED` of them in turn; in
between, only for those that have joined. A cut changes what the next chunk is worth (`scores`), not how soon its
trajectory returns. So an eviction's cost does not grow with the number of trajectories. Evictions of a few tokens
each, as short trajectories give, share one order until a chunk's worth has gone or `FRESH_S` have passed.

A request that ends or returns is only noted: what it waits for is prepared, ranked and learned in batches, when the
order is next brought up to date. One that is back before then never needs a rank.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_agentcache.predictor.duration import ESTIMATORS, DurationPredictor, PreparedWait
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.store import load, load_default
from sglang_agentcache.predictor.synthetic import fit_generated
from sglang_agentcache.predictor.tool_calls import UNKNOWN, Wait, as_wait

from .base import EvictionPolicy, IdleTrajectory
from .lessons import BATCH, Lesson, Lessons, prepare_each
from .ranking import Ranking

logger = logging.getLogger(__name__)

BASES = ("client", "tool_call", "person", "prior")
"""What a prediction may rest on: the client's own word, tool calls, that none was made, nothing."""
REBUILD_INTERVAL = 3
"""CacheWise's default, in scheduler steps; an eviction happens at most once in a step here."""
REFRESHED = 64
"""With more idle trajectories than this, a rebuild takes that many of them, the next one the next."""
FRESH_S = 1.0
"""An order older than this is brought up to date before it is used."""
SCORE_BITS = 32
GENERATED_WAITS = 5_000
"""An estimator without a shipped artefact is fitted on so many generated waits when the server starts."""


class Memo:
    """What a predicting policy keeps of one trajectory for as long as it lives."""

    __slots__ = ("expected_s", "history", "urgency", "wait", "waits_for")

    def __init__(self) -> None:
        self.history = SessionHistory()
        self.waits_for: Wait | None = None
        """None: it has taught what it can."""
        self.wait: PreparedWait | None = None
        """None until an order has needed it, or if it could not be prepared."""
        self.expected_s: float | None = None
        self.urgency = math.nan
        """As last evaluated; NaN: never, or the predictor failed."""


class RankedPolicy(EvictionPolicy):
    """The trajectory with the smallest of `scores` goes first; ties go to the older trajectory.

    Args:
        estimator: "stacked" (ours) or "cachewise" (arXiv 2606.16824, section 5.2) where no artefact is given.
        predictor: directory of a trained artefact; None takes the one shipped with the package.
        rebuild_interval: evictions between two rebuilds, at least 1.
    """

    def __init__(
        self,
        estimator: str | None = None,
        predictor: str | None = None,
        rebuild_interval: int = REBUILD_INTERVAL,
    ) -> None:
        if estimator is not None and estimator not in ESTIMATORS:
            raise ValueError(f"'estimator' must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
        if (
            isinstance(rebuild_interval, bool)
            or not isinstance(rebuild_interval, int)
            or rebuild_interval < 1
        ):
            raise ValueError(f"'rebuild_interval' must be an integer of at least 1, got {rebuild_interval!r}")
        self.rebuild_interval = rebuild_interval
        if predictor is not None:
            trained_as = load(Path(predictor)).estimator
            if estimator not in (None, trained_as):
                raise ValueError(
                    f"'estimator' {estimator!r} is not that of the artefact in {predictor} ({trained_as!r})"
                )
        self._estimator, self._artefact = estimator, predictor
        self._joined: dict[int, IdleTrajectory] = {}
        # In the order they came: those to be prepared, and those (and more) to be ranked, before they join the order.
        self._unprepared: dict[int, IdleTrajectory] = {}
        self._unranked: dict[int, IdleTrajectory] = {}
        self._turns: list[int] = []
        self._lessons = Lessons(self._predictor_failed)
        self._ranking = Ranking()
        self._evictions = 0
        self._used_tokens = 0
        self._fresh_at = -math.inf
        self._heard_at = 0.0
        self._fell_back = False
        self.forecasts: Counter[str] = Counter()
        """Waits by what their prediction rests on (`BASES`); "failed" counts what went without one."""

    fresh_tokens = 1024
    """So is one by which so many tokens, a chunk, have been evicted."""

    @abstractmethod
    def urgencies(self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray) -> np.ndarray:
        """How soon each trajectory is needed again, [n]: what changes as time passes. Any scale; more is sooner."""

    def scores(self, trajectories: Sequence[IdleTrajectory], urgencies: np.ndarray) -> np.ndarray:
        """What each trajectory's next chunk is worth keeping, [n]: what changes with a cut, too."""
        return urgencies

    def start(self) -> None:
        self.predictor = _load_predictor(self._estimator, self._artefact)

    def join(self, trajectory: IdleTrajectory, now: float) -> None:
        memo = _memo(trajectory)
        hints = trajectory.hints
        calls = getattr(hints, "tool_calls", None)
        # None: nothing is known of the wait, so the prior of all tools; (): a person is waited for.
        memo.waits_for = as_wait(UNKNOWN if calls is None else (tuple(calls) or None))
        memo.wait = None
        memo.expected_s = getattr(hints, "expected_idle_s", None)
        basis = "prior" if calls is None else "tool_call" if calls else "person"
        self.forecasts["client" if memo.expected_s is not None else basis] += 1
        for noted in (self._joined, self._unprepared, self._unranked):
            noted[trajectory.serial] = trajectory
        self._heard_at = now
        if len(self._unprepared) >= BATCH:
            self._prepare()

    def leave(self, trajectory: IdleTrajectory) -> None:
        for known in (self._joined, self._unprepared, self._unranked):
            known.pop(trajectory.serial, None)
        self._ranking.drop(trajectory.serial)
        if trajectory.closing:
            # It will not come back from this wait: the wait lasted at least until the last time we heard of.
            self._learn(trajectory, max(0.0, self._heard_at - trajectory.idle_since), censored=True)

    def refined(self, trajectory: IdleTrajectory, now: float) -> None:
        if trajectory.serial in self._joined:
            self.join(trajectory, now)

    def victim(self, now: float) -> IdleTrajectory | None:
        # Some rejoin while a fresh order is used: what another shared with them is theirs alone now.
        if now == self._fresh_at or not self._ranking:
            self._take_in(now)
        first = self._ranking.first()
        return None if first is None else self._joined[first]

    def visited(self, trajectory: IdleTrajectory, now: float) -> None:
        urgency = _memo(trajectory).urgency
        if trajectory.serial in self._joined and not math.isnan(urgency):
            self._put([trajectory], self.scores([trajectory], np.array([urgency])))

    def begin_eviction(self, now: float) -> None:
        self._heard_at = now
        if self._used_tokens < self.fresh_tokens and now - self._fresh_at < FRESH_S:
            return
        self._used_tokens, self._fresh_at = 0, now
        if self._evictions % self.rebuild_interval == 0:
            self._prepare()
            self.rebuild(self._due(), now)
        self._evictions += 1
        self._take_in(now)

    def evicted(self, tokens: int, capacity_tokens: int, now: float) -> None:
        self._used_tokens += tokens

    def rebuild(self, trajectories: Sequence[IdleTrajectory], now: float) -> None:
        """Evaluate these again: all joined ones, or those whose turn it is."""
        self._rank(trajectories, now)

    def _take_in(self, now: float) -> None:
        """Newcomers join the order."""
        if not self._unranked:
            return
        if self._unprepared:
            self._prepare()
        unranked = list(self._unranked.values())
        self._unranked.clear()
        self._rank(unranked, now)

    def _due(self) -> list[IdleTrajectory]:
        if len(self._joined) <= REFRESHED:
            self._turns.clear()
            self._unranked.clear()
            return list(self._joined.values())
        if not self._turns:
            self._turns = list(self._joined)
        turn, self._turns = self._turns[-REFRESHED:], self._turns[:-REFRESHED]
        return [
            self._joined[serial] for serial in turn if serial in self._joined and serial not in self._unranked
        ]

    def __len__(self) -> int:
        return len(self._joined)

    def returned(self, trajectory: IdleTrajectory, idle_s: float) -> None:
        self._learn(trajectory, idle_s)

    def remaining_s(
        self, trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray, horizon: float | None
    ) -> Any:
        """Expected idle time left in seconds, [n]; a client's own word counts until it has passed."""
        left = self.predictor.expected_remaining(prepared_waits(trajectories), elapsed_s, horizon)
        said = said_left(trajectories, elapsed_s)
        return np.where(np.isnan(said), left, said)

    def _learn(self, trajectory: IdleTrajectory, idle_s: float, censored: bool = False) -> None:
        """Each wait teaches once."""
        memo = _memo(trajectory)
        waits_for, wait = memo.waits_for, memo.wait
        memo.waits_for = memo.wait = None
        if waits_for is not None:
            self._lessons.note(Lesson(waits_for, wait, memo.history, idle_s, censored), self.predictor)

    def _prepare(self) -> None:
        """Look at those that are new, each with its own last wait learned."""
        self._lessons.learn(self.predictor)
        memos = [_memo(trajectory) for trajectory in self._unprepared.values()]
        self._unprepared.clear()
        pending = [(memo, memo.waits_for) for memo in memos if memo.waits_for is not None]
        waits, histories = [wait for _, wait in pending], [memo.history for memo, _ in pending]
        found = prepare_each(self.predictor, waits, histories, self._predictor_failed)
        for (memo, _), prepared in zip(pending, found, strict=True):
            memo.wait = prepared
            if prepared is None:
                memo.waits_for = None

    def _predictor_failed(self, trajectories: int = 1) -> None:
        """A wrong prediction may change the order, never stop the server. Call it while handling the exception."""
        if not self._fell_back:
            logger.exception("agentcache: the predictor failed; longest idle goes first where it does")
            self._fell_back = True
        self.forecasts["failed"] += trajectories

    def _rank(self, trajectories: Sequence[IdleTrajectory], now: float) -> None:
        if not trajectories:
            return
        elapsed_s = np.array([max(0.0, now - trajectory.idle_since) for trajectory in trajectories])
        try:
            urgencies = self.urgencies(trajectories, elapsed_s)
            scores = self.scores(trajectories, urgencies)
        except Exception:
            self._predictor_failed(len(trajectories))
            urgencies, scores = np.full(len(trajectories), math.nan), -elapsed_s
        for trajectory, urgency in zip(trajectories, urgencies.tolist(), strict=True):
            trajectory.memo.urgency = urgency
        self._put(trajectories, scores)

    def _put(self, trajectories: Sequence[IdleTrajectory], scores: np.ndarray) -> None:
        finite = np.where(np.isfinite(scores), scores, 0.0)
        self._ranking.put([trajectory.serial for trajectory in trajectories], _rounded(finite))


def _rounded(scores: np.ndarray) -> np.ndarray:
    """Scores to 9 or 10 significant digits, [n]: the last bits of equal ones differ between CPUs, numbers of
    threads and batches, and equal trajectories must stay equal on every rank."""
    mantissa, exponent = np.frexp(scores)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**SCORE_BITS), exponent - SCORE_BITS))


def _memo(trajectory: IdleTrajectory) -> Memo:
    if trajectory.memo is None:
        trajectory.memo = Memo()
    memo = trajectory.memo
    assert isinstance(memo, Memo)
    return memo


def prepared_waits(trajectories: Sequence[IdleTrajectory]) -> list[PreparedWait | None]:
    return [trajectory.memo.wait for trajectory in trajectories]


def said_left(trajectories: Sequence[IdleTrajectory], elapsed_s: np.ndarray) -> np.ndarray:
    """Seconds left by what clients said of their idle time; NaN where they said nothing or were wrong."""
    said = np.array(
        [math.nan if (expected := t.memo.expected_s) is None else expected for t in trajectories],
        dtype=np.float64,
    )
    left = said - elapsed_s
    return np.where(left > 0, left, np.nan)


def _load_predictor(estimator: str | None, directory: str | None) -> DurationPredictor:
    if directory is not None:
        return load(Path(directory))
    predictor = load_default()
    if estimator is not None and estimator != predictor.estimator:
        predictor = DurationPredictor(estimator)
        fit_generated(predictor, GENERATED_WAITS)
    return predictor
