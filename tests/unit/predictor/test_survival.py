import numpy as np
import pytest

from sglang_agentcache.predictor import survival


def exponential_row(mean_s: float) -> np.ndarray:
    times = np.linspace(0, 12 * mean_s, 20_000)
    return survival.survival_row(survival.log_seconds(times), 1 - np.exp(-times / mean_s))


def test_exponential_waits_have_no_memory():
    rows = np.stack([exponential_row(10.0)] * 3)
    left = survival.mean_left(rows, np.array([0.0, 5.0, 15.0]), horizon_s=60.0)
    assert left == pytest.approx(10.0, rel=0.06)


def test_discount_of_exponential_waits():
    # E[exp(-R / tau)] = 1 / (1 + mean / tau)
    rows = np.stack([exponential_row(10.0)] * 2)
    assert survival.discounted(rows, np.array([0.0, 10.0]), 10.0) == pytest.approx(0.5, rel=0.06)


def test_quantiles_and_medians():
    row = exponential_row(10.0)[None, :]
    assert survival.quantile(row, 0.5)[0] == pytest.approx(10 * np.log(2), rel=0.06)
    assert survival.quantile(row, 0.9)[0] == pytest.approx(10 * np.log(10), rel=0.06)
    assert survival.median_left(row, np.array([20.0]))[0] == pytest.approx(10 * np.log(2), rel=0.12)


def test_a_cut_off_wait_becomes_longer_than_its_bound():
    row = exponential_row(10.0)
    for bound in (0.0, 5.0, 50.0, 1e5, 1e9):
        assert survival.mean_log_beyond(row, bound) >= survival.log_seconds(bound)


def test_log_seconds_takes_anything():
    assert survival.log_seconds(np.array([np.nan, -5.0, np.inf, 0.0])) == pytest.approx(
        [-2, -2, 6, -2], abs=1e-6
    )
    assert survival.seconds(survival.log_seconds(3.0)) == pytest.approx(3.0)
