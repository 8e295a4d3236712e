"""Decayed means per key: a bounded memory that learns online."""

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
