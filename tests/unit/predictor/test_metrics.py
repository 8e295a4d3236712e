import itertools

import numpy as np
import pytest

from sglang_agentcache.predictor.metrics import mean_abs_log10_error, pairwise_accuracy, score


def test_pairwise_counts_ties_as_half():
    actual = np.array([1.0, 2.0, 2.0, 3.0])
    assert pairwise_accuracy(actual, actual) == 1.0
    assert pairwise_accuracy(actual, -actual) == 0.0
    assert pairwise_accuracy(actual, np.ones(4)) == 0.5
    assert np.isnan(pairwise_accuracy(np.ones(3), actual[:3]))


def test_pairwise_matches_the_definition_across_blocks():
    random = np.random.default_rng(1)
    actual, predicted = random.integers(0, 40, 1100).astype(float), random.integers(0, 40, 1100).astype(float)
    right = pairs = 0.0
    for i, j in itertools.combinations(range(len(actual)), 2):
        if actual[i] != actual[j]:
            pairs += 1
            agreement = (actual[i] - actual[j]) * (predicted[i] - predicted[j])
            right += 1.0 if agreement > 0 else 0.5 if agreement == 0 else 0.0
    assert pairwise_accuracy(actual, predicted) == pytest.approx(right / pairs)


def test_error_is_in_decades():
    assert mean_abs_log10_error(np.array([9.99]), np.array([0.99])) == pytest.approx(1.0)
    assert score(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == {
        "pairwise_accuracy": 1.0,
        "mean_abs_log10_error": 0.0,
        "n": 2,
    }
