"""Our estimator: a ridge on the words of the call, boosted trees on what is known besides, honest residuals.

1. `TermRidge` foresees the log duration from hashed TF-IDF 1-2-grams of the call and its parsed command.
2. `BoostedTrees` corrects it with the numbers of the call, means per tool and per program, and the session's
   own recent waits (`SessionHistory`), where most of the gain is.
3. `ResidualBook` turns the point into a distribution, with residuals of predictions made without the call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sglang_agentcache.predictor import survival
from sglang_agentcache.predictor.censoring import fold_of, impute
from sglang_agentcache.predictor.counters import KeyMeans
from sglang_agentcache.predictor.features import NUMBERS, CallFeatures, call_features
from sglang_agentcache.predictor.history import HISTORY, SessionHistory
from sglang_agentcache.predictor.linear import TermRidge
from sglang_agentcache.predictor.parallel import run_each
from sglang_agentcache.predictor.residuals import ResidualBook
from sglang_agentcache.predictor.tool_calls import Wait
from sglang_agentcache.predictor.trees import BoostedTrees

#: Parts of cross-fitting: what trees and residuals see of a call comes from a model that had not seen it.
N_FOLDS = 3
#: Columns of the trees' input.
COLUMNS = ("words", "tool_mean", "tool_seen", "program_mean", "program_seen", "parallel", *NUMBERS, *HISTORY)

# How strongly a drift of one key is believed, in observations: a tool of the training data, and a new one.
_DRIFT_PRIOR_KNOWN, _DRIFT_PRIOR_NEW = 10.0, 1.0
_KNOWN_FROM = 20.0  # observations that make a tool known


class Seen(NamedTuple):
    """One wait between the two halves of `StackedEstimator.prepare`; ``row`` is float64 [len(COLUMNS)]."""

    call: CallFeatures
    words: float
    drift: float
    row: np.ndarray


@dataclass(frozen=True, slots=True)
class StackedWait:
    """A wait, prepared once: everything that later questions about it need."""

    call: CallFeatures
    words: float
    model: float
    log_median: float
    row: np.ndarray


class StackedEstimator:
    """See the module; `fit`, `prepare`, `observe` are called by `DurationPredictor`."""

    def __init__(self, n_trees: int = 120) -> None:
        self.n_trees = n_trees
        self.base_ = 0.0
        self.ridge_ = TermRidge()
        self.trees_ = BoostedTrees(n_trees=n_trees)
        self.residuals_ = ResidualBook()
        self.tools_ = KeyMeans(prior=8.0, memory=2000.0)
        self.programs_ = KeyMeans(prior=8.0, memory=500.0)
        self.tool_drift_ = KeyMeans(prior=_DRIFT_PRIOR_KNOWN, memory=100.0)
        self.program_drift_ = KeyMeans(prior=_DRIFT_PRIOR_KNOWN, memory=100.0)

    def fit(
        self,
        waits: Sequence[Wait],
        durations: np.ndarray,
        sessions: Sequence[str],
        groups: Sequence[str],
        censored: np.ndarray,
    ) -> StackedEstimator:
        """Fit from scratch; rows of one session in time order, ``groups`` never split by cross-fitting."""
        options = [_calls_of(wait) for wait in waits]
        parallel = np.array([len(calls) for calls in options], dtype=np.float64)
        calls = [choices[0] for choices in options]
        target = survival.log_seconds(durations)
        if censored.any():
            target = impute(target, censored, [c.tool for c in calls], [c.program for c in calls])
        self.base_ = float(np.median(target))
        calls = self._last_to_return(options, target)
        folds = np.array([fold_of(group, N_FOLDS) for group in groups])
        if len(set(folds.tolist())) == 1:  # a single session: its rows are all there is to cross-fit with
            folds = np.arange(len(calls)) % N_FOLDS

        terms = [call.terms for call in calls]

        def ridge(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
            return (
                TermRidge()
                .fit([terms[i] for i in outside], target[outside])
                .predict([terms[i] for i in inside])
            )

        words = _honest(ridge, folds, self.base_)
        self.ridge_ = TermRidge().fit(terms, target)

        tools, programs = [call.tool for call in calls], [call.program for call in calls]
        tool_mean, tool_seen = self.tools_.out_of_fold(tools, target, folds, np.full(len(calls), self.base_))
        program_mean, program_seen = self.programs_.out_of_fold(programs, target, folds, tool_mean)
        self.tools_.fit(tools, target)
        self.programs_.fit(programs, target)

        rows = np.column_stack(
            [
                words,
                tool_mean,
                np.log10(1 + tool_seen),
                program_mean,
                np.log10(1 + program_seen),
                np.log10(parallel),
                np.stack([call.numbers for call in calls]),
                self._histories(calls, target, words, sessions),
            ]
        )
        self.trees_, honest = _fit_trees(lambda: BoostedTrees(self.n_trees), rows, target, folds, self.base_)
        self.residuals_ = ResidualBook().fit(tools, honest, target)
        self.tool_drift_.fit([], np.empty(0))
        self.program_drift_.fit([], np.empty(0))
        return self

    def prepare(self, wait: Wait, history: SessionHistory | None = None) -> StackedWait:
        """Everything about one wait, in well under a millisecond for one call."""
        return self.finish([self.look(wait, history)])[0]

    def prepare_many(
        self, waits: Sequence[Wait], histories: Sequence[SessionHistory | None]
    ) -> list[StackedWait]:
        """`prepare` for many waits, each with its history as it is now."""
        return self.finish([self.look(wait, history) for wait, history in zip(waits, histories, strict=True)])

    def look(self, wait: Wait, history: SessionHistory | None = None) -> Seen:
        """The first half of `prepare`: all that depends on the history as it is now."""
        options = _calls_of(wait)
        foreseen = [self.ridge_.predict_one(call.terms) for call in options]
        last = max(range(len(options)), key=lambda i: (foreseen[i], -i))
        call, words = options[last], foreseen[last]
        tool_mean, tool_seen = self.tools_.mean(call.tool, self.base_)
        program_mean, program_seen = self.programs_.mean(call.program, tool_mean)
        known = [
            words,
            tool_mean,
            math.log10(1 + tool_seen),
            program_mean,
            math.log10(1 + program_seen),
            math.log10(len(options)),
        ]
        # Not `or`: one of which only a person was waited for counts no waits.
        past = (SessionHistory() if history is None else history).features(call)
        return Seen(call, words, self._drift(call, tool_seen), np.concatenate([known, call.numbers, past]))

    def finish(self, seen: Sequence[Seen]) -> list[StackedWait]:
        """The second half of `prepare`, for many waits at once."""
        if not seen:
            return []
        rows = np.stack([one.row for one in seen])
        models = self.trees_.predict(rows)
        out = []
        for one, model in zip(seen, models.tolist(), strict=True):
            centre = model + one.drift
            log_durations, cdf = self.residuals_.distribution(one.call.tool, centre)
            row = survival.survival_row(log_durations, cdf)
            out.append(StackedWait(one.call, one.words, model, centre, row))
        return out

    def observe(
        self, wait: StackedWait, duration_s: float, censored: bool, history: SessionHistory | None
    ) -> None:
        """Learn that ``wait`` took ``duration_s``, 0 to `survival.MAX_DURATION_S` (``censored``: at least that)."""
        if censored:
            actual = survival.mean_log_beyond(wait.row, duration_s)
        else:
            actual = math.log10(duration_s + survival.OFFSET_S)
        self.tools_.add(wait.call.tool, actual)
        self.programs_.add(wait.call.program, actual)
        self.tool_drift_.add(wait.call.tool, actual - wait.model)
        self.program_drift_.add(wait.call.program, actual - wait.model)
        self.residuals_.add(wait.call.tool, wait.log_median, actual)
        if history is not None:
            history.add(wait.call, actual, wait.words)

    def _drift(self, call: CallFeatures, tool_seen: float) -> float:
        known = tool_seen - self.tool_drift_.mean(call.tool, 0.0)[1] >= _KNOWN_FROM
        prior = _DRIFT_PRIOR_KNOWN if known else _DRIFT_PRIOR_NEW
        tool, _ = self.tool_drift_.mean(call.tool, 0.0, prior)
        return self.program_drift_.mean(call.program, tool, prior)[0]

    def _last_to_return(self, options: list[list[CallFeatures]], target: np.ndarray) -> list[CallFeatures]:
        """Of parallel calls only the last return is seen; take the call that a ridge foresees to be it."""
        alone = [i for i, calls in enumerate(options) if len(calls) == 1]
        if len(alone) == len(options) or not alone:
            return [calls[0] for calls in options]
        first = TermRidge().fit([options[i][0].terms for i in alone], target[alone])
        return [
            calls[0] if len(calls) == 1 else max(calls, key=lambda call: first.predict_one(call.terms))
            for calls in options
        ]

    def _histories(
        self, calls: Sequence[CallFeatures], target: np.ndarray, words: np.ndarray, sessions: Sequence[str]
    ) -> np.ndarray:
        open_sessions: dict[str, SessionHistory] = {}
        rows = np.empty((len(calls), len(HISTORY)))
        for i, (call, session) in enumerate(zip(calls, sessions, strict=True)):
            history = open_sessions.setdefault(session, SessionHistory())
            rows[i] = history.features(call)
            history.add(call, float(target[i]), float(words[i]))
        return rows


def _calls_of(wait: Wait) -> list[CallFeatures]:
    return [call_features(call) for call in wait.calls] or [call_features(None)]


def _fit_trees(
    make: Callable[[], BoostedTrees],
    rows: np.ndarray,
    target: np.ndarray,
    folds: np.ndarray,
    otherwise: float,
) -> tuple[BoostedTrees, np.ndarray]:
    """Return (trees fitted on all rows, what trees that had not seen each row say of it)."""
    whole: list[BoostedTrees] = []

    def part(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        return make().fit(rows[outside], target[outside]).predict(rows[inside])

    def all_rows() -> np.ndarray:
        whole.append(make().fit(rows, target))
        return np.empty(0)

    honest = _honest(part, folds, otherwise, all_rows)
    return whole[0], honest


def _honest(
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
    folds: np.ndarray,
    otherwise: float,
    *also: Callable[[], np.ndarray],
) -> np.ndarray:
    """Cross-fit: ``predict(inside, outside)`` learns from the rows outside a fold and returns values for
    those inside.

    Rows that leave nothing to learn from get ``otherwise``. ``also`` runs beside the folds.
    """
    parts = [
        (np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)) for fold in sorted(set(folds.tolist()))
    ]
    parts = [(inside, outside) for inside, outside in parts if len(outside)]
    tasks: list[Callable[[], np.ndarray]] = [functools.partial(predict, *part) for part in parts]
    found = run_each([*also, *tasks])
    out = np.full(len(folds), otherwise)
    for (inside, _), values in zip(parts, found[len(also) :], strict=True):
        out[inside] = values
    return out
