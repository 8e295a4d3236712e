"""Bounded memories that learn online: decayed means per key, and decayed residual histograms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class KeyMeans:
    """A decayed mean per key, shrunk towards a base value; forgets the keys not updated for longest.

    Args:
        prior: weight of the base value, in observations.
        memory: observations of one key that count; older ones fade exponentially.
        max_keys: keys kept.
    """

    def __init__(self, prior: float, memory: float, max_keys: int = 8192) -> None:
        self.prior = prior
        self.memory = memory
        self.max_keys = max_keys
        self._sums: dict[str, tuple[float, float]] = {}  # key -> (weight, weighted sum); oldest update first

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, key: str, value: float) -> None:
        weight, total = self._sums.pop(key, (0.0, 0.0))
        fade = 1.0 - 1.0 / self.memory
        self._sums[key] = (weight * fade + 1.0, total * fade + value)
        if len(self._sums) > self.max_keys:
            del self._sums[next(iter(self._sums))]

    def mean(self, key: str, base: float, prior: float | None = None) -> tuple[float, float]:
        """Return (shrunk mean, weight of the evidence); (base, 0) for a key never seen."""
        weight, total = self._sums.get(key, (0.0, 0.0))
        prior = self.prior if prior is None else prior
        return (total + prior * base) / (weight + prior), weight

    def fit(self, keys: Sequence[str], values: np.ndarray) -> KeyMeans:
        self._sums = {}
        for key, value in zip(keys, values.tolist(), strict=True):
            self.add(key, value)
        return self

    def out_of_fold(
        self, keys: Sequence[str], values: np.ndarray, folds: np.ndarray, base: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """`mean` of every key without the values of its own fold (undecayed): two float64 [n]."""
        _, code = np.unique(np.asarray(keys, dtype=object).astype(str), return_inverse=True)
        n_folds = int(folds.max()) + 1
        cell = code * n_folds + folds
        size = (int(code.max()) + 1) * n_folds
        sums = np.bincount(cell, values, size).reshape(-1, n_folds)
        counts = np.bincount(cell, minlength=size).reshape(-1, n_folds)
        total = sums.sum(axis=1)[code] - sums[code, folds]
        weight = np.minimum(counts.sum(axis=1)[code] - counts[code, folds], self.memory)
        count = np.maximum(counts.sum(axis=1)[code] - counts[code, folds], 1)
        return (total / count * weight + self.prior * base) / (weight + self.prior), weight.astype(np.float64)

    def state(self) -> dict[str, list[float]]:
        """The means as JSON values, in update order."""
        return {key: [weight, total] for key, (weight, total) in self._sums.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        self._sums = {str(key): (float(weight), float(total)) for key, (weight, total) in state.items()}


class ResidualBook:
    """How far off predictions are: one decayed histogram per band of the prediction and band of its expected error.

    Attributes:
        bands_: float64 [BANDS - 1], borders between the bands of predicted log durations.
        spreads_: float64 [SPREADS - 1], borders between the bands of the expected error.
        counts_: float64 [BANDS, SPREADS, len(EDGES) - 1].
    """

    BANDS = 12
    SPREADS = 4
    #: Borders of the residual histogram, log10 seconds.
    EDGES = np.arange(-5.0, 7.0 + 0.025, 0.05)
    _MEMORY = 4000.0
    _BORROWED = 40.0  # observations' worth of the neighbours, so that a rare cell is not read literally

    def __init__(self) -> None:
        self.bands_ = np.linspace(-2.0, 3.0, self.BANDS - 1)
        self.spreads_ = np.linspace(0.05, 1.0, self.SPREADS - 1)
        self.counts_ = np.zeros((self.BANDS, self.SPREADS, len(self.EDGES) - 1))

    def fit(self, predicted: np.ndarray, spread: np.ndarray, actual: np.ndarray) -> ResidualBook:
        """Count residuals of honest (out-of-fold) predictions: three float64 [n], log10 seconds."""
        self.bands_ = np.quantile(predicted, np.linspace(0, 1, self.BANDS + 1)[1:-1])
        self.spreads_ = np.quantile(spread, np.linspace(0, 1, self.SPREADS + 1)[1:-1])
        self.counts_[:] = 0.0
        cell = (np.searchsorted(self.bands_, predicted), np.searchsorted(self.spreads_, spread))
        np.add.at(self.counts_, (*cell, self._bin(actual - predicted)), 1.0)
        return self

    def add(self, predicted: float, spread: float, actual: float) -> None:
        cell = self.counts_[
            int(np.searchsorted(self.bands_, predicted)), int(np.searchsorted(self.spreads_, spread))
        ]
        total = cell.sum()
        if total >= self._MEMORY:
            cell *= (self._MEMORY - 1.0) / total
        cell[int(self._bin(actual - predicted))] += 1.0

    def distribution(self, predicted: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
        """Return (log durations [k], P(T <= .) there [k]) of a wait predicted at ``predicted``."""
        band, width = (
            int(np.searchsorted(self.bands_, predicted)),
            int(np.searchsorted(self.spreads_, spread)),
        )
        counts = self.counts_[band, width]
        for neighbours in (
            self.counts_[max(band - 1, 0) : band + 2, width],
            self.counts_[:, width],
            self.counts_,
        ):
            pooled = neighbours.reshape(-1, counts.shape[-1]).sum(axis=0)
            if total := pooled.sum():
                counts = counts + pooled * (self._BORROWED / total)
                break
        cumulative = np.concatenate([[0.0], np.cumsum(counts)])
        if not cumulative[-1]:  # nothing learned at all: a broad guess around the prediction
            return predicted + np.array([-1.5, 0.0, 2.0]), np.array([0.0, 0.5, 1.0])
        return predicted + self.EDGES, cumulative / cumulative[-1]

    def _bin(self, residual: np.ndarray | float) -> np.ndarray:
        return np.clip(np.searchsorted(self.EDGES, residual, side="right") - 1, 0, len(self.EDGES) - 2)
