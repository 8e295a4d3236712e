"""The estimator of CacheWise (arXiv 2606.16824, section 5.2), kept selectable beside ours.

Per tool: TF-IDF of the arguments (at most 5,000 terms, l2), KMeans (at most 100 clusters), and the empirical
durations of each cluster, conditioned on the time already elapsed. The paper does not say what a rare cluster
or a wait beyond the longest sample gets; here both back off from the cluster to the tool to all tools.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_agentcache.predictor import survival
from sglang_agentcache.predictor.arguments import MAX_TEXT_CHARS, read_arguments
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait

#: Lexicon of one tool (the paper's footnote 3).
MAX_TERMS = 5000
#: Samples kept per distribution, newest first.
MAX_SAMPLES = 4096
_WORD = re.compile(r"\b\w\w+\b")


class Empirical:
    """The newest `MAX_SAMPLES` durations of one class, seconds."""

    __slots__ = ("_row", "_samples", "_sorted", "_suffix")

    def __init__(self, samples: Iterable[float] = ()) -> None:
        self._samples: deque[float] = deque(samples, maxlen=MAX_SAMPLES)
        self._sorted: np.ndarray | None = None
        self._suffix = np.zeros(1)
        self._row: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, duration_s: float) -> None:
        self._samples.append(duration_s)
        self._sorted = self._row = None

    def samples(self) -> np.ndarray:
        """The samples in the order they came, float64 [n]."""
        return np.array(self._samples, dtype=np.float64)

    def ordered(self) -> np.ndarray:
        """The samples in ascending order, float64 [n]."""
        if self._sorted is None:
            self._sorted = np.sort(self.samples())
            self._suffix = np.concatenate([np.cumsum(self._sorted[::-1])[::-1], [0.0]])
        return self._sorted

    def mean_left(self, elapsed_s: np.ndarray) -> np.ndarray:
        """E[T - e | T > e] over the samples, NaN where none is longer: float64 [n] -> float64 [n]."""
        ordered = self.ordered()
        at = np.searchsorted(ordered, elapsed_s, side="right")
        longer = len(ordered) - at
        return np.where(longer > 0, self._suffix[at] / np.maximum(longer, 1) - elapsed_s, np.nan)

    def row(self) -> np.ndarray:
        """P(T > t) on the common grid."""
        if self._row is None:
            points = survival.log_seconds(self.ordered())
            shares = (np.arange(len(points)) + 0.5) / max(len(points), 1)
            if not len(points):  # nothing learned at all: a broad guess
                points, shares = np.array([-1.0, 3.0]), np.array([0.0, 1.0])
            self._row = survival.survival_row(points, shares)
        return self._row


@dataclass(slots=True)
class ToolClusters:
    """One tool's lexicon, cluster centres and durations.

    ``idf`` float64 [terms]; ``centres`` float32 [clusters, terms]; ``squares`` float64 [clusters].
    """

    vocabulary: dict[str, int]
    idf: np.ndarray
    centres: np.ndarray
    squares: np.ndarray
    clusters: list[Empirical]
    durations: Empirical

    def nearest(self, text: str) -> int:
        """The cluster whose centre is closest to the TF-IDF vector of ``text``."""
        counts = Counter(
            term for word in _WORD.findall(text) if (term := self.vocabulary.get(word)) is not None
        )
        if not counts:
            return int(np.argmin(self.squares))
        at = np.fromiter(counts, dtype=np.int64, count=len(counts))
        weight = np.fromiter(counts.values(), dtype=np.float64, count=len(counts)) * self.idf[at]
        weight /= np.sqrt(weight @ weight)
        return int(np.argmin(self.squares - 2.0 * (self.centres[:, at] @ weight)))


@dataclass(frozen=True, slots=True)
class CachewiseWait:
    """A prepared wait: its distributions from narrow to broad; the first that can answer does."""

    chain: tuple[Empirical, ...]
    members: tuple[Empirical, ...]
    row: np.ndarray
    log_median: float


class CachewiseEstimator:
    """See the module. ``min_samples``: a narrower distribution with fewer is skipped."""

    def __init__(self, n_clusters: int = 100, min_samples: int = 5) -> None:
        self.n_clusters = n_clusters
        self.min_samples = min_samples
        self.tools_: dict[str, ToolClusters] = {}
        self.all_ = Empirical()
        self.person_ = Empirical()

    def fit(
        self,
        waits: Sequence[Wait],
        durations: np.ndarray,
        sessions: Sequence[str],
        groups: Sequence[str],
        censored: np.ndarray,
    ) -> CachewiseEstimator:
        """Fit from scratch; sessions and groups play no part, and the paper leaves running calls out."""
        self.tools_, self.all_, self.person_ = {}, Empirical(), Empirical()
        by_tool: dict[str, tuple[list[str], list[float]]] = {}
        for wait, duration, running in zip(
            waits, np.asarray(durations).tolist(), censored.tolist(), strict=True
        ):
            if running:
                continue
            if not wait.calls:
                self.person_.add(duration)
                continue
            self.all_.add(duration)
            call = _telling(wait)
            texts, seconds = by_tool.setdefault(call.name, ([], []))
            texts.append(_text(call))
            seconds.append(duration)
        for name, (texts, seconds) in by_tool.items():
            self.tools_[name] = self._cluster(texts, seconds)
        return self

    def _cluster(self, texts: list[str], seconds: list[float]) -> ToolClusters:
        from sklearn.cluster import KMeans
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectors = TfidfVectorizer(max_features=MAX_TERMS, norm="l2", lowercase=False)
        durations = Empirical(seconds)
        try:
            matrix = vectors.fit_transform(texts)
        except ValueError:  # no words at all, e.g. only empty arguments
            return ToolClusters(
                {}, np.ones(0), np.zeros((1, 0), np.float32), np.zeros(1), [durations], durations
            )
        # Equal arguments are one weighted point: the same objective in a fraction of the time.
        first, weight, which = _distinct(matrix)
        model = KMeans(n_clusters=min(self.n_clusters, len(first)), n_init=1, max_iter=50, random_state=0)
        labels = model.fit_predict(matrix[first], sample_weight=weight.astype(np.float64))[which]
        centres = model.cluster_centers_.astype(np.float32)
        clusters = [Empirical() for _ in range(len(centres))]
        for label, duration in zip(labels.tolist(), seconds, strict=True):
            clusters[label].add(duration)
        vocabulary = {word: int(at) for word, at in vectors.vocabulary_.items()}
        return ToolClusters(
            vocabulary,
            vectors.idf_,
            centres,
            (centres.astype(np.float64) ** 2).sum(axis=1),
            clusters,
            durations,
        )

    def prepare(self, wait: Wait, history: object = None) -> CachewiseWait:
        """Find the distributions of a wait; of parallel calls, the one expected to last longest counts."""
        if not wait.calls:
            return _wait((self.person_, self.all_), (self.person_,), self.min_samples)
        found = [self._chain(call) for call in wait.calls]
        return max(
            found, key=lambda one: float(one.chain[0].mean_left(np.zeros(1))[0]) if len(one.chain[0]) else 0.0
        )

    def prepare_many(self, waits: Sequence[Wait], histories: Sequence[object]) -> list[CachewiseWait]:
        """`prepare`, one by one: what is shared between them is already cached."""
        return [self.prepare(wait) for wait in waits]

    def _chain(self, call: ToolCall) -> CachewiseWait:
        tool = self.tools_.get(call.name)
        if tool is None:
            return _wait((self.all_,), (self.all_,), self.min_samples)
        cluster = tool.clusters[tool.nearest(_text(call))]
        chain = (cluster, tool.durations, self.all_)
        return _wait(chain, chain if cluster is not tool.durations else chain[1:], self.min_samples)

    def observe(self, wait: CachewiseWait, duration_s: float, censored: bool) -> None:
        """Add one duration to the cluster, its tool, and all tools."""
        if censored:
            duration_s += float(mean_left([wait], np.array([duration_s]))[0])
        for member in wait.members:
            member.add(duration_s)


def mean_left(waits: Sequence[CachewiseWait], elapsed_s: np.ndarray) -> np.ndarray:
    """E[T - e | T > e] for many waits at once, float64 [n]; one call per distribution, not per wait."""
    out = np.full(len(waits), np.nan)
    open_rows = np.arange(len(waits))
    for level in range(3):
        groups: dict[int, list[int]] = {}
        for at in open_rows.tolist():
            chain = waits[at].chain
            if level < len(chain):
                groups.setdefault(id(chain[level]), []).append(
                    at
                )  # grouping only: no order depends on the id
        for rows in groups.values():
            out[rows] = waits[rows[0]].chain[level].mean_left(elapsed_s[rows])
        open_rows = np.flatnonzero(np.isnan(out))
        if not len(open_rows):
            break
    # Longer than everything ever seen: as long again.
    out[open_rows] = elapsed_s[open_rows]
    return np.maximum(out, survival.MIN_LEFT_S)


def _wait(chain: tuple[Empirical, ...], members: tuple[Empirical, ...], min_samples: int) -> CachewiseWait:
    enough = tuple(one for one in chain if len(one) >= min_samples) or chain[-1:]
    row = enough[0].row()
    ordered = enough[0].ordered()
    median = float(np.median(ordered)) if len(ordered) else float(survival.quantile(row[None, :], 0.5)[0])
    return CachewiseWait(enough, members, row, float(survival.log_seconds(median)))


def _distinct(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a row number of every different row of a CSR matrix, how often it occurs, each row's one)."""
    known: dict[tuple[bytes, bytes], int] = {}
    first: list[int] = []
    which = np.empty(matrix.shape[0], dtype=np.int64)
    for row, (start, stop) in enumerate(itertools.pairwise(matrix.indptr.tolist())):
        key = (matrix.indices[start:stop].tobytes(), matrix.data[start:stop].tobytes())
        which[row] = known.setdefault(key, len(known))
        if len(known) > len(first):
            first.append(row)
    return np.array(first), np.bincount(which), which


def _telling(wait: Wait) -> ToolCall:
    # Of parallel calls a trace keeps the arguments of one only.
    return max(wait.calls, key=lambda call: len(_text(call)))


def _text(call: ToolCall) -> str:
    fields, text = read_arguments(call.arguments)
    words = [
        f"{key} {value}" if isinstance(value, (str, int, float)) else key for key, value in fields.items()
    ]
    return " ".join([*words, text if not fields else ""])[:MAX_TEXT_CHARS].lower()
