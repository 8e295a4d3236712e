"""What ours is measured against: the predictors of CacheWise figure 19, their medians, a moving average."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.parallel import run_each
from sglang_agentcache.predictor.records import WaitRecords
from sglang_agentcache.predictor.store import ArtefactError, load, save
from sglang_agentcache.predictor.tool_calls import PERSON, Wait

#: Clusters per tool of the paper's C20, C50, C100.
CLUSTERS = (20, 50, 100)
#: Folder of an artefact that holds the clustered baselines, so that other data can be scored with them.
FOLDER = "baselines"
_MOVING_WAITS = 5  # InferCept's session-local moving average; it does not give its window


class Baselines:
    """Global mean, mean and median per tool, session moving average, and the paper's clusters.

    Attributes:
        means_, medians_: seconds per tool name; the key "" holds all tools.
        clusters_: the paper's estimator per number of clusters (may lack some).
    """

    def __init__(self) -> None:
        self.means_: dict[str, float] = {}
        self.medians_: dict[str, float] = {}
        self.clusters_: dict[int, DurationPredictor] = {}

    def fit(self, train: WaitRecords) -> Baselines:
        finished = [at for at, running in enumerate(train.censored) if not running]
        rows: dict[str, list[float]] = {"": []}
        for at in finished:
            rows[""].append(train.durations[at])
            rows.setdefault(wait_name(train.waits[at]), []).append(train.durations[at])
        self.means_ = _each(rows, np.mean)
        self.medians_ = _each(rows, np.median)
        fits = run_each([functools.partial(_clustered, train, count) for count in CLUSTERS])
        self.clusters_ = dict(zip(CLUSTERS, fits, strict=True))
        return self

    def predict(self, records: WaitRecords) -> dict[str, np.ndarray]:
        """Durations in seconds that each baseline foresees: name -> float64 [n]."""
        names = [wait_name(wait) for wait in records.waits]
        mean, median = self.means_[""], self.medians_[""]
        out = {
            "global_mean": np.full(len(names), mean),
            "tool_mean": np.array([self.means_.get(name, mean) for name in names]),
            "tool_median": np.array([self.medians_.get(name, median) for name in names]),
            "session_moving_average": _moving_average(records, mean),
        }
        for count, predictor in self.clusters_.items():
            waits: list[object] = [predictor.prepare(wait) for wait in records.waits]
            out[f"c{count}_mean"] = predictor.expected_remaining(waits)
            out[f"c{count}_median"] = predictor.predict(waits)
        return out

    def save(self, artefact: Path) -> dict[str, Any]:
        """Write the clustered ones beside an artefact and return the rest as JSON values."""
        for count, predictor in self.clusters_.items():
            save(predictor, artefact / FOLDER / f"c{count}")
        return {"means": self.means_, "medians": self.medians_}

    @classmethod
    def load(cls, artefact: Path, values: object) -> Baselines | None:
        """The baselines saved with an artefact, or None if it came without.

        Raises:
            ArtefactError: they are there but damaged.
        """
        if not isinstance(values, Mapping):
            return None
        found = cls()
        try:
            found.means_ = {str(name): float(value) for name, value in values["means"].items()}
            found.medians_ = {str(name): float(value) for name, value in values["medians"].items()}
            if not {"", *found.medians_} <= set(found.means_) or "" not in found.medians_:
                raise KeyError("all tools")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtefactError(f"{artefact}: the baselines are damaged ({error})") from None
        for count in CLUSTERS:
            folder = artefact / FOLDER / f"c{count}"
            if folder.is_dir():
                found.clusters_[count] = load(folder)
        return found


def wait_name(wait: Wait) -> str:
    """The tool a wait is filed under; of parallel calls the one whose arguments are known."""
    return max(wait.calls, key=lambda call: len(str(call.arguments))).name if wait.calls else PERSON


def _each(
    rows: Mapping[str, list[float]], statistic: Callable[[np.ndarray], np.floating]
) -> dict[str, float]:
    return {name: float(statistic(np.array(values))) if values else 0.0 for name, values in rows.items()}


def _moving_average(records: WaitRecords, average: float) -> np.ndarray:
    past: dict[str, list[float]] = {}
    out = np.empty(len(records))
    for at, (session, duration) in enumerate(zip(records.sessions, records.durations, strict=True)):
        own = past.setdefault(session, [])
        out[at] = float(np.mean(own[-_MOVING_WAITS:])) if own else average
        own.append(duration)
    return out


def _clustered(train: WaitRecords, count: int) -> DurationPredictor:
    return DurationPredictor("cachewise", n_clusters=count).fit(
        train.waits, train.durations, censored=train.censored
    )
