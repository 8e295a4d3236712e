"""What the time of a round went into, and what losing every history would have cost."""

import pytest

from sglang_agentcache.scheduling.load import MAX_ROUND_S, SMOOTHING, Load


def test_shares_of_the_time_of_a_round():
    load = Load()
    load.passed(100.0)
    # One second of prefill, half of it again, then one of decoding, then two with nothing to do.
    load.runs(1_000, 500, [300], idle=False)
    load.passed(101.0)
    load.runs(0, 0, [], idle=False)
    load.passed(102.0)
    load.runs(0, 0, [], idle=True)
    load.passed(104.0)
    assert not load.round_over
    load.runs(100, 0, [100, 100, 100], idle=False)
    assert load.round_over
    load.next_round(inside=7)
    # Four seconds; the first round counts for a quarter of what is measured.
    assert load.waste == pytest.approx(0.5 / 4 * SMOOTHING)
    assert load.idle == pytest.approx(2 / 4 * SMOOTHING)
    assert (load.processed_tokens, load.redone_tokens) == (1_100, 500)
    # A millisecond a token, 600 tokens of history, three seconds without prefill.
    assert load.stake == pytest.approx(0.6 / 3)
    load.runs(100, 0, [1] * 6, idle=False)
    load.passed(120.0)
    assert not load.round_over
    load.runs(100, 0, [1], idle=False)
    assert load.round_over


def test_a_round_without_enough_returns_ends_all_the_same():
    load = Load()
    load.passed(0.0)
    load.runs(0, 0, [], idle=False)
    load.passed(MAX_ROUND_S - 0.1)
    assert not load.round_over
    load.passed(MAX_ROUND_S)
    assert load.round_over


def round_of(load: Load, at: float, steps: list[tuple[int, float]], histories: list[int]) -> float:
    """Steps of so many tokens and seconds; those that returned come with the first."""
    for number, (tokens, seconds) in enumerate(steps):
        load.passed(at)
        load.runs(tokens, 0, histories if number == 0 else [], idle=False)
        at += seconds
    load.passed(at)
    load.next_round(inside=1)
    return at


def test_nothing_is_known_of_the_stake_until_somebody_returns():
    load = Load()
    at = round_of(load, 0.0, [(1_000, 1.0), (0, 9.0)], [])
    assert load.stake is None
    at = round_of(load, at, [(1_000, 1.0), (0, 9.0)], [9_000])
    assert load.stake == pytest.approx(1.0)
    # From then on a round without returns says that little is at stake.
    round_of(load, at, [(1_000, 1.0), (0, 9.0)], [])
    assert load.stake == pytest.approx(0.5)


def test_the_cost_of_a_token_is_that_of_long_steps():
    load = Load()
    # Ten milliseconds a step, and a tenth of one a token.
    steps = [(50, 0.015)] * 20 + [(8_000, 0.81)] * 3 + [(0, 10.0)]
    round_of(load, 0.0, steps, [100_000])
    assert load.stake == pytest.approx(1.0, rel=0.05)


def test_a_machine_that_only_prefills_has_a_stake_too():
    load = Load()
    round_of(load, 0.0, [(1_000, 10.0)], [1_000])
    assert 1 < load.stake < 100


def test_planned_ahead_a_step_takes_the_time_after_the_next_plan():
    """Overlapped: while a step runs, the next one is planned, and then the time passes."""
    ahead, plain = Load(overlapped=True), Load()
    for load in (ahead, plain):
        load.passed(0.0)
        load.runs(0, 0, [], idle=False)
        load.passed(0.1)
        load.runs(1_000, 1_000, [500], idle=False)
        load.passed(0.2)
        load.runs(0, 0, [], idle=False)
        load.passed(2.1)
        load.next_round(inside=1)
    assert ahead.waste == pytest.approx(1.9 / 2.1 * SMOOTHING)
    assert plain.waste == pytest.approx(0.1 / 2.1 * SMOOTHING)


def test_only_decoding_after_decoding_goes_uncounted():
    load = Load(overlapped=True)
    load.passed(0.0)
    load.runs(0, 0, [], idle=False)
    assert not load.decodes_on(0.01), "before it there was nothing to run"
    load.passed(0.01)
    load.runs(0, 0, [], idle=False)
    assert load.decodes_on(0.02)
    assert not load.decodes_on(0.2)
    load.passed(0.02)
    load.runs(100, 0, [], idle=False)
    assert not load.decodes_on(0.03)
    load.passed(0.03)
    load.runs(0, 0, [], idle=False)
    assert not load.decodes_on(0.04), "the prefill runs now"
    load.passed(0.04)
    load.runs(0, 0, [], idle=False)
    assert load.decodes_on(0.05)
