"""The limit on what is inside follows what re-prefill costs."""

import pytest

from sglang_agentcache.scheduling.overcommit import (
    HEADROOM,
    IDLE,
    LEAST,
    START,
    STARVING_TARGET_WASTE,
    TARGET_WASTE,
    Load,
    Overcommit,
    target_waste,
)


def after(rounds: int, waste: float, idle: float = 0.0, footprint: float = 1.5) -> float:
    limit = Overcommit()
    for _ in range(rounds):
        limit.update(waste, idle, min(footprint, limit.limit))
    return limit.limit


def test_it_grows_while_little_is_wasted_but_not_far_beyond_what_is_inside():
    assert START < after(1, 0.0) < after(5, 0.0)
    assert after(100, 0.0) == pytest.approx(HEADROOM * 1.5)
    assert after(100, 0.0, footprint=0.1) == START
    assert after(1, TARGET_WASTE) == pytest.approx(START)


def test_it_shrinks_in_proportion_and_not_below_the_least():
    assert START > after(1, 1.5 * TARGET_WASTE) > after(1, 2 * TARGET_WASTE) > LEAST
    assert after(100, 1.0) == LEAST


def test_it_does_not_shrink_while_more_is_inside_than_it_allows():
    limit = Overcommit()
    limit.update(1.0, 0.0, 2 * START)
    assert limit.limit == START
    limit.update(1.0, 0.0, 1.1)
    assert limit.limit < 1.1


def test_a_machine_with_time_to_spare_opens():
    limit = Overcommit()
    for _ in range(100):
        limit.update(1.0, 0.0, LEAST)
    limit.update(1.0, IDLE, 0.1)
    assert limit.limit > 1.2 * LEAST
    before = limit.limit
    limit.starved()
    assert limit.limit > before


@pytest.mark.parametrize("best", [0.8, 1.2, 2.5])
def test_it_settles_where_the_waste_meets_the_target(best):
    """A machine of which re-prefill takes more time, the more is inside."""
    limit = Overcommit()
    for _ in range(300):
        waste = max(0.0, min(1.0, TARGET_WASTE + (limit.limit - best) * 0.5))
        limit.update(waste, 0.0, limit.limit)
    assert limit.limit == pytest.approx(best, rel=0.05)


def test_orders_that_let_the_costly_starve_may_have_more_inside():
    for schedule in ("fcfs", "lpm", "hrrn", "prefix-aware"):
        assert target_waste(schedule) == TARGET_WASTE
    for schedule in ("prefix-aware-greedy", "shortest-prefill-first"):
        limit = Overcommit(target_waste(schedule))
        limit.update(TARGET_WASTE, 0.0, START)
        assert limit.limit > START
        limit.update(1.5 * STARVING_TARGET_WASTE, 0.0, limit.limit)
        assert limit.limit < START


def test_shares_of_the_time_of_a_round():
    load = Load()
    load.passed(100.0)
    # One second of prefill, half of it again, then one of decoding, then two with nothing to do.
    load.runs(1_000, 500, 1, idle=False)
    load.passed(101.0)
    load.runs(0, 0, 0, idle=False)
    load.passed(102.0)
    load.runs(0, 0, 0, idle=True)
    load.passed(104.0)
    assert not load.round_over
    load.runs(100, 0, 3, idle=False)
    assert load.round_over
    load.next_round(inside=7)
    # Four seconds; the first round counts for a quarter of what is measured.
    assert load.waste == pytest.approx(0.5 / 4 / 4)
    assert load.idle == pytest.approx(2 / 4 / 4)
    assert (load.processed_tokens, load.redone_tokens) == (1_100, 500)
    load.runs(100, 0, 6, idle=False)
    load.passed(120.0)
    assert not load.round_over
    load.runs(100, 0, 1, idle=False)
    assert load.round_over
