"""How far off predictions are: residual histograms that turn a predicted point into a distribution."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np

#: Borders of the residual histograms, log10 seconds.
EDGES = np.arange(-5.0, 7.0 + 0.025, 0.05)
_EDGES: list[float] = EDGES.tolist()

# Observations that one histogram remembers; older ones fade exponentially.
_MEMORY = 4000.0
# What a histogram borrows, in observations: from its neighbours in the bands, for one tool from all tools.
# The second is large because a tail of a few long waits, read literally, is what misleads eviction most.
_FROM_NEIGHBOURS = 40.0
_FROM_ALL_TOOLS = 600.0


class ResidualBands:
    """One decayed residual histogram per band of the predicted log duration.

    Attributes:
        borders_: float64 [bands - 1], between the bands, ascending.
        counts_: float64 [bands, len(EDGES) - 1].
    """

    def __init__(self, borders: np.ndarray, counts: np.ndarray | None = None) -> None:
        self.borders_ = borders
        self._borders: list[float] = borders.tolist()
        self.counts_ = np.zeros((len(borders) + 1, len(EDGES) - 1)) if counts is None else counts

    @classmethod
    def fitted(cls, predicted: np.ndarray, actual: np.ndarray, n_bands: int) -> ResidualBands:
        """Bands of equal numbers of predictions, and their residuals: two float64 [n]."""
        bands = cls(np.quantile(predicted, np.linspace(0, 1, n_bands + 1)[1:-1]))
        np.add.at(bands.counts_, (np.searchsorted(bands.borders_, predicted), _bins(actual - predicted)), 1.0)
        return bands

    def add(self, predicted: float, actual: float) -> None:
        counts = self.counts_[self.band(predicted)]
        total = counts.sum()
        if total >= _MEMORY:
            counts *= (_MEMORY - 1.0) / total
        counts[min(max(bisect_right(_EDGES, actual - predicted) - 1, 0), len(_EDGES) - 2)] += 1.0

    def band(self, predicted: float) -> int:
        """The number of the band that a predicted log duration lies in."""
        # One number among few: numpy's call would cost more than the search.
        return bisect_left(self._borders, predicted)

    def histogram(self, band: int) -> np.ndarray:
        """Counts in and around a band, smoothed: float64 [len(EDGES) - 1]."""
        around = self.counts_[max(band - 1, 0) : band + 2].sum(axis=0)
        return self.counts_[band] + around * (_FROM_NEIGHBOURS / max(float(around.sum()), 1.0))


class ResidualBook:
    """Residuals of all tools together, and of each frequent tool.

    Attributes:
        all_: ResidualBands.
        tools_: ResidualBands per tool name.
    """

    #: Bands of all tools together, and at most of one tool.
    BANDS = 16
    #: Predictions that earn a tool its own histograms, and one more band.
    TOOL_ROWS, BAND_ROWS = 300, 400

    def __init__(self) -> None:
        self.all_ = ResidualBands(np.linspace(-2.0, 3.0, self.BANDS - 1))
        self.tools_: dict[str, ResidualBands] = {}
        # Between two additions: many waits that are prepared together share few of them.
        self._cumulative: dict[tuple[str, int, int], np.ndarray | None] = {}

    def fit(self, tools: Sequence[str], predicted: np.ndarray, actual: np.ndarray) -> ResidualBook:
        """Count residuals of honest (out-of-fold) predictions, log10 seconds, float64 [n] each."""
        self.all_ = ResidualBands.fitted(predicted, actual, self.BANDS)
        self.tools_ = {}
        self._cumulative.clear()
        names = np.array(tools, dtype=object)
        for tool, count in Counter(tools).items():
            if count >= self.TOOL_ROWS:
                own = names == tool
                n_bands = int(np.clip(count // self.BAND_ROWS, 1, self.BANDS))
                self.tools_[tool] = ResidualBands.fitted(predicted[own], actual[own], n_bands)
        return self

    def add(self, tool: str, predicted: float, actual: float) -> None:
        self._cumulative.clear()
        self.all_.add(predicted, actual)
        if tool in self.tools_:
            self.tools_[tool].add(predicted, actual)

    def distribution(self, tool: str, predicted: float) -> tuple[np.ndarray, np.ndarray]:
        """Return (log durations [k], P(T <= .) there [k]) of a wait predicted at ``predicted``."""
        own = self.tools_.get(tool)
        band = self.all_.band(predicted)
        key = ("", band, 0) if own is None else (tool, band, own.band(predicted))
        if key not in self._cumulative:
            self._cumulative[key] = self._shares(own, band, key[2])
        shares = self._cumulative[key]
        if shares is None:  # nothing learned at all: a broad guess around the prediction
            return predicted + np.array([-1.5, 0.0, 2.0]), np.array([0.0, 0.5, 1.0])
        return predicted + EDGES, shares

    def _shares(self, own: ResidualBands | None, band: int, own_band: int) -> np.ndarray | None:
        """P(residual <= .) at `EDGES`; None where nothing was ever counted."""
        counts = self.all_.histogram(band)
        total = float(counts.sum())
        if not total:
            return None
        if own is not None:
            counts = own.histogram(own_band) + counts * (_FROM_ALL_TOOLS / total)
        cumulative = np.concatenate([[0.0], np.cumsum(counts)])
        return np.asarray(cumulative / cumulative[-1])


def _bins(residual: np.ndarray | float) -> np.ndarray:
    return np.clip(np.searchsorted(EDGES, residual, side="right") - 1, 0, len(EDGES) - 2)
