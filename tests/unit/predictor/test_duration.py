import time

import numpy as np
import pytest

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.stacked import COLUMNS
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait

QUICK = ToolCall("Read", '{"file_path": "src/core/api.go"}')
SLOW = ToolCall("Bash", {"command": "go test ./... -race"})


def test_orders_tools_and_commands(predictor):
    quick, test, agent = predictor.predict([QUICK, SLOW, ToolCall("Task", '{"description": "explore"}')])
    assert quick < test < agent


def test_shapes(predictor):
    assert isinstance(predictor.expected_remaining(QUICK), float)
    assert predictor.expected_remaining([QUICK, SLOW], 1.0).shape == (2,)
    assert predictor.expected_remaining(SLOW, [0.0, 1.0, 2.0]).shape == (3,)
    assert predictor.expected_remaining([]).shape == (0,)
    assert predictor.return_rate([], tau=5.0).shape == (0,)


def test_batch_equals_one_by_one(predictor):
    calls, elapsed = [QUICK, SLOW, None, (QUICK, SLOW)], [0.0, 3.0, 100.0, 2.0]
    for evaluate in (
        predictor.expected_remaining,
        predictor.median_remaining,
        predictor.return_rate,
        lambda c, e: predictor.return_rate(c, e, tau=30.0),
        predictor.return_index,
        lambda c, e: predictor.expected_remaining(c, e, horizon=60.0),
    ):
        together = evaluate(calls, elapsed)
        alone = [evaluate(call, each) for call, each in zip(calls, elapsed, strict=True)]
        assert together == pytest.approx(alone, rel=1e-9)


def test_more_than_one_block_of_waits(predictor):
    waits = [predictor.prepare(call) for call in (QUICK, SLOW, None)] * 200
    elapsed = np.linspace(0.0, 500.0, len(waits))
    found = predictor.return_index(waits, elapsed)
    few = [0, 255, 256, 257, 511, 512, 599]
    assert found.shape == (600,)
    assert found[few] == pytest.approx([predictor.return_index(waits[at], elapsed[at]) for at in few])
    assert predictor.return_index([], []).shape == (0,)


def test_prepared_waits_answer_as_calls(predictor):
    prepared = [predictor.prepare(call) for call in (QUICK, SLOW)]
    assert predictor.expected_remaining(prepared, 2.0) == pytest.approx(
        predictor.expected_remaining([QUICK, SLOW], 2.0)
    )


def test_rates_are_the_inverse_and_a_probability(predictor):
    left = predictor.expected_remaining([QUICK, SLOW], 1.0)
    assert predictor.return_rate([QUICK, SLOW], 1.0) == pytest.approx(1.0 / left)
    soon, late = (predictor.return_rate(SLOW, 0.0, tau=tau) for tau in (1.0, 600.0))
    assert 0 < soon < late <= 1


def test_horizon_caps_the_time_left(predictor):
    capped = predictor.expected_remaining([QUICK, SLOW, None], 0.0, horizon=10.0)
    assert (capped <= 10.0 + 1e-9).all()
    # The grid of the horizon is coarser than the samples that "cachewise" averages without one.
    assert (capped <= predictor.expected_remaining([QUICK, SLOW, None], 0.0) * 1.05).all()


def test_person_is_its_own_class(predictor):
    assert predictor.predict(None) > 5 * predictor.predict(SLOW)


def test_parallel_calls_return_with_the_last(predictor):
    # Not merely positive: as long as the slow one, whichever stands first.
    alone = predictor.predict(SLOW)
    for pair in ((QUICK, SLOW), (SLOW, QUICK)):
        assert predictor.predict(pair) > 0.4 * alone
        assert predictor.predict(pair) > 5 * predictor.predict(QUICK)


@pytest.mark.parametrize("elapsed", [-1.0, float("nan"), float("inf"), 1e12, 0.0])
def test_any_elapsed_time_has_an_answer(predictor, elapsed):
    for value in (
        predictor.expected_remaining(SLOW, elapsed),
        predictor.median_remaining(SLOW, elapsed),
        predictor.return_rate(SLOW, elapsed),
        predictor.return_rate(SLOW, elapsed, tau=1e-3),
    ):
        assert np.isfinite(value) and value > 0


def test_beyond_every_sample_the_time_left_grows(predictor):
    hour, week = predictor.expected_remaining(QUICK, [1e5, 6e5])
    assert hour > 0
    assert week > 600.0


@pytest.mark.parametrize(
    "call", [ToolCall("never seen", "{}"), ToolCall("", ""), 3, b"x", (), {"name": None}, object()]
)
def test_strange_calls_get_the_prior(predictor, call):
    assert np.isfinite(predictor.predict(call)) and predictor.predict(call) > 0


def test_unfitted_predictor_answers():
    for estimator in ("stacked", "cachewise"):
        empty = DurationPredictor(estimator)
        assert np.isfinite(empty.expected_remaining([QUICK, None], [0.0, 5.0])).all()


def test_history_moves_the_prediction(stacked):
    history = SessionHistory()
    plain = stacked.predict(QUICK)
    for _ in range(8):
        prepared = stacked.prepare(QUICK, history)
        history.add(prepared.call, 1.0, prepared.words)  # ten seconds each
    assert stacked.predict([stacked.prepare(QUICK, history)])[0] > 5 * plain


def test_a_history_of_persons_only_counts(stacked):
    history = SessionHistory()
    for _ in range(3):
        stacked.observe(stacked.prepare(None, history), 4000.0, history=history)
    seen = stacked.model_.look(Wait(), history).row
    assert seen[COLUMNS.index("person_last")] == pytest.approx(np.log10(4000.01))
    assert seen[COLUMNS.index("since_person")] == 0.0


def test_learns_new_tools_online():
    # Without a refit and from a few calls: the 0.5 s and 20 s tools.
    predictor = DurationPredictor(n_trees=20)
    for _ in range(5):
        predictor.partial_fit([ToolCall("short_job"), ToolCall("long_job")], [0.5, 20.0])
    short, long = predictor.predict([ToolCall("short_job"), ToolCall("long_job")])
    assert 0.1 < short < 2.0
    assert 5.0 < long < 60.0
    assert predictor.expected_remaining(ToolCall("long_job")) > predictor.expected_remaining(
        ToolCall("short_job")
    )


def test_forgets_what_changed(records):
    from .conftest import fitted

    for estimator in ("stacked", "cachewise"):
        predictor = fitted(records, estimator)
        before = predictor.predict(QUICK)
        predictor.partial_fit([QUICK] * 300, [30.0] * 300)
        assert predictor.predict(QUICK) > 10 * before, estimator


def test_running_calls_are_evidence():
    calls = [ToolCall("job")] * 60
    finished = DurationPredictor(n_trees=5).fit(calls, [1.0] * 60)
    running = DurationPredictor(n_trees=5).fit(
        calls, [1.0] * 30 + [50.0] * 30, censored=[False] * 30 + [True] * 30
    )
    assert running.predict(calls[0]) > 2 * finished.predict(calls[0])
    online = DurationPredictor(n_trees=5).fit(calls, [1.0] * 60)
    online.partial_fit(calls, [100.0] * 60, censored=[True] * 60)
    assert online.predict(calls[0]) > 10 * finished.predict(calls[0])


def test_memory_is_bounded(stacked):
    predictor = DurationPredictor(n_trees=2)
    for number in range(9000):
        predictor.model_.tools_.add(f"tool{number}", 0.0)
    assert len(predictor.model_.tools_) == predictor.model_.tools_.max_keys


def test_fitting_twice_gives_the_same(records):
    from .conftest import fitted

    some = records.select(range(600))
    first, second = fitted(some), fitted(some)
    assert first.expected_remaining(some.waits[:50]) == pytest.approx(
        second.expected_remaining(some.waits[:50]), abs=0
    )


@pytest.mark.parametrize(
    ("keywords", "said"),
    [({"estimator": "magic"}, "estimator"), ({"n_trees": 0}, "n_trees"), ({"n_clusters": 101}, "n_clusters")],
)
def test_parameters_are_checked(keywords, said):
    with pytest.raises(ValueError, match=said):
        DurationPredictor(**keywords)


def test_fit_checks_lengths():
    with pytest.raises(ValueError, match="durations: 1 entries for 2 calls"):
        DurationPredictor().fit([QUICK, SLOW], [1.0])
    with pytest.raises(ValueError, match="at least one"):
        DurationPredictor().fit([], [])
    with pytest.raises(ValueError, match="tau must be a positive"):
        DurationPredictor().return_rate(QUICK, 0.0, tau=0.0)


def test_get_params_rebuilds():
    params = DurationPredictor("cachewise", n_clusters=20).get_params()
    assert DurationPredictor(**params).get_params() == params


def _best_of(runs, work):
    times = []
    for _ in range(runs):
        began = time.thread_time()  # of this thread alone: others may be busy
        work()
        times.append(time.thread_time() - began)
    return min(times)


def test_a_thousand_idle_trajectories_take_under_2_ms(predictor, records):
    waits = [predictor.prepare(wait) for wait in records.waits[:1000]]
    elapsed = np.linspace(0.0, 500.0, 1000)
    assert _best_of(30, lambda: predictor.expected_remaining(waits, elapsed)) < 2e-3
    assert _best_of(30, lambda: predictor.return_rate(waits, elapsed, tau=30.0)) < 2e-3
    assert _best_of(30, lambda: predictor.return_index(waits, elapsed)) < 5e-3


def test_one_new_call_takes_under_1_ms(predictor):
    history = SessionHistory()
    predictor.prepare(Wait((SLOW,)), history)
    assert _best_of(50, lambda: predictor.prepare(Wait((SLOW,)), history)) < 1e-3
