"""How good a prediction of durations is: order, error, coverage."""

from __future__ import annotations

import numpy as np

from sglang_agentcache.predictor.survival import log_seconds


def pairwise_accuracy(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the pairs with different true durations that the prediction orders right; a tie counts one
    half.

    Args:
        actual, predicted: float64 [n]. Costs O(n^2 / 2) comparisons in blocks; NaN is returned without such a
            pair.
    """
    order = np.argsort(actual, kind="stable")
    actual, predicted = actual[order], predicted[order]
    right = pairs = 0.0
    for start in range(0, len(actual), 512):
        block_actual, block = actual[start : start + 512, None], predicted[start : start + 512, None]
        longer = actual[None, start:] > block_actual
        right += np.count_nonzero((predicted[None, start:] > block) & longer)
        right += 0.5 * np.count_nonzero((predicted[None, start:] == block) & longer)
        pairs += np.count_nonzero(longer)
    return right / pairs if pairs else float("nan")


def mean_abs_log10_error(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Mean of |log10(predicted + 0.01) - log10(actual + 0.01)|, seconds in, float64 [n] each."""
    return (
        float(np.mean(np.abs(log_seconds(predicted) - log_seconds(actual)))) if len(actual) else float("nan")
    )


def score(actual: np.ndarray, predicted: np.ndarray) -> dict[str, float | int]:
    """The three figures that every estimator is reported with."""
    return {
        "pairwise_accuracy": round(float(pairwise_accuracy(actual, predicted)), 4),
        "mean_abs_log10_error": round(mean_abs_log10_error(actual, predicted), 4),
        "n": len(actual),
    }
