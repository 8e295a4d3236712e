"""`DurationPredictor`: how long an idle trajectory will stay idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_agentcache.predictor import cachewise, survival
from sglang_agentcache.predictor.cachewise import CachewiseEstimator, CachewiseWait
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.stacked import StackedEstimator, StackedWait
from sglang_agentcache.predictor.tool_calls import as_wait

ESTIMATORS = ("stacked", "cachewise")

#: So many rows and what is computed of them stay in a core's cache: thousands at once take three times as long.
_BLOCK = 256

#: A wait, prepared once when its calls are seen.
PreparedWait = StackedWait | CachewiseWait


class DurationPredictor:
    """Predicts the time left until a trajectory's next request, from its pending tool calls and its own past.

    In a server: `prepare` once when a turn ends (well under 1 ms), or `prepare_many` before an order is needed,
    `expected_remaining` or `return_rate` for all idle trajectories as often as wanted (vectorised), `observe`
    when the trajectory returns. ``calls`` is
    whatever `as_wait` reads, or a `PreparedWait`; a *list* of those is a batch, a *tuple* of calls is one
    turn of parallel calls, None is a wait for a person. No input raises: what cannot be read gets the prior
    of all tools.

    Args:
        estimator: "stacked" (ours) or "cachewise" (arXiv 2606.16824, section 5.2).
        n_trees: boosted trees of "stacked".
        n_clusters: clusters per tool of "cachewise", at most 100.

    Raises:
        ValueError: an argument outside what is allowed.
    """

    def __init__(self, estimator: str = "stacked", n_trees: int = 120, n_clusters: int = 100) -> None:
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, not {estimator!r}")
        if not 1 <= n_trees <= 1000:
            raise ValueError(f"n_trees must be from 1 to 1000, not {n_trees}")
        if not 1 <= n_clusters <= 100:
            raise ValueError(f"n_clusters must be from 1 to 100, not {n_clusters}")
        self.estimator = estimator
        self.n_trees = n_trees
        self.n_clusters = n_clusters
        self.model_: StackedEstimator | CachewiseEstimator = (
            StackedEstimator(n_trees) if estimator == "stacked" else CachewiseEstimator(n_clusters)
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments (scikit-learn's convention)."""
        return {"estimator": self.estimator, "n_trees": self.n_trees, "n_clusters": self.n_clusters}

    def fit(
        self,
        calls: Sequence[object],
        durations: Sequence[float] | np.ndarray,
        *,
        sessions: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        censored: Sequence[bool] | np.ndarray | None = None,
    ) -> DurationPredictor:
        """Learn from scratch.

        Args:
            calls: n waits.
            durations: seconds until the last call returned, [n]; negative and NaN count as 0.
            sessions: the trajectory of each row, rows of one in time order; without it no row has a past.
            groups: sessions that belong together (a parent and its sub-agents); default: the sessions.
            censored: True where the wait was still running after that duration.

        Raises:
            ValueError: no rows, or lengths that differ.
        """
        n = len(calls)
        sessions = [str(i) for i in range(n)] if sessions is None else sessions
        groups = sessions if groups is None else groups
        running = np.zeros(n, dtype=bool) if censored is None else np.asarray(censored, dtype=bool)
        if n == 0:
            raise ValueError("calls: at least one is needed to fit")
        for name, column in (
            ("durations", durations),
            ("sessions", sessions),
            ("groups", groups),
            ("censored", running),
        ):
            if len(column) != n:
                raise ValueError(f"{name}: {len(column)} entries for {n} calls")
        self.model_.fit([as_wait(call) for call in calls], _clean(durations), sessions, groups, running)
        return self

    def partial_fit(
        self,
        calls: Sequence[object],
        durations: Sequence[float] | np.ndarray,
        *,
        sessions: Sequence[str] | None = None,
        censored: Sequence[bool] | np.ndarray | None = None,
    ) -> DurationPredictor:
        """Learn from more rows, in time order, as `observe` does; arguments as in `fit`."""
        histories: dict[str, SessionHistory] = {}
        for i, (call, duration) in enumerate(zip(calls, _clean(durations).tolist(), strict=True)):
            history = histories.setdefault(sessions[i], SessionHistory()) if sessions is not None else None
            running = bool(censored[i]) if censored is not None else False
            self.observe(self.prepare(call, history), duration, history=history, censored=running)
        return self

    def prepare(self, call: object, history: SessionHistory | None = None) -> PreparedWait:
        """Do everything about one wait that need not be done again: once, when its calls are known."""
        if isinstance(call, (StackedWait, CachewiseWait)):
            return call
        return self.model_.prepare(as_wait(call), history)

    def prepare_many(
        self, calls: Sequence[object], histories: Sequence[SessionHistory | None]
    ) -> Sequence[PreparedWait]:
        """`prepare` each call with the history beside it, all as they are now: a fraction of the time for many."""
        return self.model_.prepare_many([as_wait(call) for call in calls], histories)

    def observe(
        self,
        prepared: PreparedWait,
        duration_s: float,
        *,
        history: SessionHistory | None = None,
        censored: bool = False,
    ) -> None:
        """Learn how long a prepared wait took, into a bounded memory that fades.

        Args:
            prepared: from this predictor's `prepare`.
            duration_s: seconds until the trajectory returned, or until it was given up on (``censored``).
            history: the trajectory's own history, extended in place.
        """
        # A wait of the estimator that a reload has just replaced carries nothing the new one could use.
        model, duration = self.model_, _clean_one(duration_s)
        if isinstance(model, StackedEstimator):
            if isinstance(prepared, StackedWait):
                model.observe(prepared, duration, censored, history)
        elif isinstance(prepared, CachewiseWait):
            model.observe(prepared, duration, censored)

    def predict(self, calls: object) -> Any:
        """The median duration in seconds, before any time has elapsed: the best point for order and error."""
        waits, single = self._waits(calls)
        return _shape(survival.seconds(np.array([wait.log_median for wait in waits])), single)

    def quantile(self, calls: object, share: float) -> Any:
        """The duration in seconds that ``share`` (0 to 1) of such waits stay below."""
        waits, single = self._waits(calls)
        return _shape(survival.quantile(_rows(waits), share), single)

    def expected_remaining(self, calls: object, elapsed: Any = 0.0, horizon: float | None = None) -> Any:
        """E[T - elapsed | T > elapsed] in seconds: a float, or float64 [n] for a batch (or for many
        ``elapsed``).

        Args:
            calls: one wait, or a list of n waits.
            elapsed: seconds since each became idle, one or [n]; negative and NaN count as 0.
            horizon: seconds; with it E[min(T - elapsed, horizon) | T > elapsed]. Means of heavy tails order
                badly, and to a cache nothing differs beyond the time in which its pool turns over.
        """
        waits, elapsed_s, single = self._conditions(calls, elapsed)
        if horizon is None and all(isinstance(wait, CachewiseWait) for wait in waits):
            return _shape(cachewise.mean_left(waits, elapsed_s), single)  # type: ignore[arg-type]
        return _shape(survival.mean_left(_rows(waits), elapsed_s, _positive("horizon", horizon)), single)

    def median_remaining(self, calls: object, elapsed: Any = 0.0) -> Any:
        """The median of the time left in seconds; arguments and result as in `expected_remaining`."""
        waits, elapsed_s, single = self._conditions(calls, elapsed)
        return _shape(survival.median_left(_rows(waits), elapsed_s), single)

    def return_rate(self, calls: object, elapsed: Any = 0.0, tau: float | None = None) -> Any:
        """How soon the trajectory is needed again; arguments and result as in `expected_remaining`.

        With R the time left: 1 / E[R] per second, or with ``tau`` (seconds) the discounted E[exp(-R / tau)],
        from 0 to 1.
        """
        if tau is None:
            return 1.0 / self.expected_remaining(calls, elapsed)
        waits, elapsed_s, single = self._conditions(calls, elapsed)
        scale = _positive("tau", tau)
        assert scale is not None
        return _shape(survival.discounted(_rows(waits), elapsed_s, scale), single)

    def return_index(self, calls: object, elapsed: Any = 0.0, delay_s: float = 0.5) -> Any:
        """The best chance of a return per second of waiting for it (`survival.return_index`), per second.

        Arguments and result as in `expected_remaining`; ``delay_s`` seconds are waited in any case.
        """
        waits, elapsed_s, single = self._conditions(calls, elapsed)
        delay = _positive("delay_s", delay_s)
        assert delay is not None
        blocks = [slice(start, start + _BLOCK) for start in range(0, max(1, len(waits)), _BLOCK)]
        found = [survival.return_index(_rows(waits[block]), elapsed_s[block], delay) for block in blocks]
        return _shape(np.concatenate(found), single)

    def _waits(self, calls: object) -> tuple[list[PreparedWait], bool]:
        if isinstance(calls, list):
            return [self.prepare(call) for call in calls], False
        return [self.prepare(calls)], True

    def _conditions(self, calls: object, elapsed: Any) -> tuple[list[PreparedWait], np.ndarray, bool]:
        waits, single = self._waits(calls)
        times = np.asarray(_clean(np.atleast_1d(np.asarray(elapsed, dtype=np.float64))))
        if single and np.ndim(elapsed):
            waits, single = waits * len(times), False
        return waits, np.broadcast_to(times, len(waits)), single


def _rows(waits: Sequence[PreparedWait]) -> np.ndarray:
    if not waits:
        return np.empty((0, len(survival.TIME_GRID)))
    return np.concatenate([wait.row for wait in waits]).reshape(len(waits), -1)


def _clean(values: Any) -> np.ndarray:
    # fmax and fmin take the number where the other is NaN.
    return np.fmin(np.fmax(np.asarray(values, dtype=np.float64), 0.0), survival.MAX_DURATION_S)


def _clean_one(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(0.0, float(value)), survival.MAX_DURATION_S)


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number of seconds, not {value}")
    return value


def _shape(values: np.ndarray, single: bool) -> Any:
    return float(values[0]) if single else values
