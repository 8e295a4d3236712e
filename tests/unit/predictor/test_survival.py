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


def test_index_of_waits_without_memory_is_the_inverse_of_the_mean():
    rows = np.stack([exponential_row(10.0)] * 3)
    index = survival.return_index(rows, np.array([0.0, 5.0, 15.0]), 2.0)
    assert index == pytest.approx(1 / 12.0, rel=0.1)


def test_index_of_a_certain_wait():
    row = survival.survival_row(survival.log_seconds(np.array([29.0, 31.0])), np.array([0.0, 1.0]))[None, :]
    for elapsed in (0.0, 10.0, 15.0):  # a cell of the grid is a quarter wide there
        index = survival.return_index(row, np.array([elapsed]), 0.5)[0]
        assert index == pytest.approx(1 / (30.5 - elapsed), rel=0.2)


def test_index_counts_the_short_half_until_it_has_passed():
    times = np.array([0.9, 1.0, 1.1, 990.0, 1000.0, 1010.0])
    row = survival.survival_row(survival.log_seconds(times), np.array([0, 0.25, 0.5, 0.5, 0.75, 1]))[None, :]
    before, after = (survival.return_index(row, np.array([e]), 0.5)[0] for e in (0.0, 3.0))
    assert before > 0.3
    assert after == pytest.approx(1e-3, rel=0.3)


def test_index_is_at_least_that_of_waiting_to_the_end():
    rng = np.random.default_rng(0)
    rows = np.stack(
        [survival.survival_row(np.sort(rng.normal(0, 2, 30)), np.linspace(0, 1, 30)) for _ in range(200)]
    )
    elapsed = 10.0 ** rng.uniform(-2, 7, 200)
    index = survival.return_index(rows, elapsed, 0.5)
    assert np.isfinite(index).all() and (index > 0).all()
    assert (index <= 1 / 0.5).all()
    inside = survival.mean_left(rows, elapsed) > 2 * survival.MIN_LEFT_SHARE * elapsed  # not the floor
    assert inside.sum() > 50
    patient = 1 / (survival.mean_left(rows, elapsed) + 0.5)
    assert (index[inside] >= 0.999 * patient[inside]).all()


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


def test_no_duration_is_out_of_range():
    strange = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300])
    end = np.log10(survival.MAX_DURATION_S + survival.OFFSET_S)
    assert survival.log_seconds(strange) == pytest.approx([-2.0, end, -2.0, -2.0, -2.0, end])
    assert float(survival.log_seconds(np.nan)) == -2.0
