"""The limit on what is inside follows what is at stake, and re-prefill corrects it."""

import math

import pytest

from sglang_agentcache.scheduling.overcommit import (
    FULL,
    HEADROOM,
    IDLE,
    LEAST,
    MOST_POOLS,
    STARVING_BEARABLE,
    TARGET_WASTE,
    Overcommit,
    bearable,
    tolerance,
)

ALL = 100.0
"""A stake beside which nothing else counts."""


def after(
    rounds: int, waste: float, stake: float | None = ALL, idle: float = 0.0, inside: float = 1.0
) -> float:
    """The limit after so many rounds in which so much of what it allows was inside."""
    limit = Overcommit()
    for _ in range(rounds):
        limit.update(waste, idle, stake, inside * limit.limit)
    return limit.limit


def test_with_everything_at_stake_it_is_the_pool():
    assert Overcommit().limit == FULL
    assert after(100, 0.0) == pytest.approx(FULL, rel=0.001)


def test_the_less_is_at_stake_the_more_may_be_inside():
    limits = [after(1, 0.0, stake) for stake in (10.0, 3.0, 2.0, 1.5, 1.1)]
    assert limits == sorted(limits)
    assert limits[-1] > 4
    assert after(1, 0.0, 1.0) == after(1, 0.9, 0.1) == MOST_POOLS


def test_before_anything_is_known_it_feels_its_way():
    assert FULL < after(1, 0.0, None) < after(5, 0.0, None)
    # Not far beyond what is inside, either.
    assert after(100, 0.0, None, inside=0.9 / HEADROOM) == FULL


def test_waste_shrinks_it_in_proportion_and_not_below_the_least():
    assert FULL > after(1, 1.5 * TARGET_WASTE) > after(1, 2 * TARGET_WASTE) > after(2, 2 * TARGET_WASTE)
    assert after(100, 1.0) == pytest.approx(LEAST * FULL, rel=0.001)


def test_without_waste_it_comes_back():
    limit = Overcommit()
    for _ in range(20):
        limit.update(1.0, 0.0, ALL, limit.limit)
    for _ in range(20):
        limit.update(0.0, 0.0, ALL, limit.limit)
    assert limit.limit == pytest.approx(FULL, rel=0.1)


def test_with_less_at_stake_more_waste_is_borne():
    assert after(1, 2 * TARGET_WASTE, 1.2) == pytest.approx(FULL * tolerance(1.2))
    assert after(1, 2 * TARGET_WASTE, 3.0) < FULL * tolerance(3.0)


def test_it_does_not_shrink_while_more_is_inside_than_it_allows():
    limit = Overcommit()
    limit.update(1.0, 0.0, ALL, 2 * FULL)
    assert limit.limit == pytest.approx(FULL, rel=0.001)
    limit.update(1.0, 0.0, ALL, FULL)
    assert limit.limit < FULL


def test_a_machine_with_time_to_spare_and_little_waste_opens():
    assert after(5, 0.0, idle=IDLE) > 1.2 * FULL
    assert after(5, 2 * TARGET_WASTE, idle=IDLE) < FULL


@pytest.mark.parametrize("best", [0.65, 0.7, 0.78])
def test_it_settles_where_the_waste_meets_the_target(best):
    """A machine of which re-prefill takes more time, the more is inside."""
    limit = Overcommit()
    for _ in range(300):
        waste = max(0.0, min(1.0, TARGET_WASTE + (limit.limit - best) * 0.5))
        limit.update(waste, 0.0, ALL, limit.limit)
    assert limit.limit == pytest.approx(best, rel=0.05)


def test_orders_that_let_the_costly_starve_may_have_more_at_stake():
    for schedule in ("fcfs", "lpm", "hrrn", "prefix-aware"):
        assert tolerance(1.5, bearable(schedule)) == tolerance(1.5)
    for schedule in ("prefix-aware-greedy", "shortest-prefill-first"):
        assert tolerance(STARVING_BEARABLE, bearable(schedule)) == math.inf
        assert tolerance(ALL, bearable(schedule)) == pytest.approx(1, rel=0.001)


def test_what_lies_on_the_host_is_not_lost():
    assert Overcommit(kept_pools=3.0).limit == pytest.approx(3 * FULL)
    without_end = Overcommit(kept_pools=math.inf)
    for waste in (0.0, 0.5, 0.0):
        without_end.update(waste, 0.0, ALL, 2.0)
        assert without_end.limit == MOST_POOLS
