"""Steps whose results are looked at one step later, as in SGLang's overlap loop."""

import pytest

from eval.sim.baselines import baseline
from eval.sim.cost import Coefficients, MeasuredCost
from eval.sim.scheduler import Settings
from eval.sim.simulation import Run, Simulation
from eval.trace import Trajectory, Turn

COST = MeasuredCost(Coefficients(prefill_step_s=1.0, prefill_token_s=0.0, decode_step_s=0.1))


def one(name: str, prompt: int, output: int) -> Trajectory:
    turn = Turn(kind="user", prompt_tokens=prompt, new_input_tokens=prompt, output_tokens=output, t_s=0.0)
    return Trajectory(
        trajectory_id=name, session_group=name, source="test", agent="test", turns=[turn], n_turns=1
    )


def served(items, overlap, capacity=1_000, ramp_s=0.0, **settings):
    run = Run(
        baseline("rr:chunk_tokens=16"), len(items), capacity, ramp_s=ramp_s, check=True,
        settings=Settings(overlap=overlap, **settings),
    )  # fmt: skip
    outcome = Simulation(run, items, COST).run()
    return {item.trajectory_id: item for item in outcome.requests}, outcome


@pytest.mark.parametrize("overlap", [False, True])
def test_a_first_token_is_seen_after_the_step_that_follows_it(overlap):
    found, _ = served([one("a", 100, 3)], overlap)
    assert found["a"].ttft_s == pytest.approx(1.1 if overlap else 1.0)
    # After the last step comes none: its result is looked at at once.
    assert found["a"].latency_s == pytest.approx(1.2)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_single_token_needs_no_second_step(overlap):
    found, _ = served([one("a", 100, 1)], overlap)
    assert found["a"].ttft_s == found["a"].latency_s == pytest.approx(1.0)


@pytest.mark.parametrize("overlap", [False, True])
def test_who_finishes_takes_no_part_in_the_step_that_follows(overlap):
    found, _ = served([one("a", 100, 2), one("b", 100, 6)], overlap)
    assert found["a"].latency_s == pytest.approx(1.2 if overlap else 1.1)
    assert found["b"].latency_s == pytest.approx(1.5)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prompt_in_chunks_gets_one_first_token(overlap):
    found, outcome = served([one("a", 100, 2), one("b", 30, 3)], overlap, chunked_prefill_size=40)
    assert outcome.prefill_tokens == 130
    assert [found[name].output_tokens for name in "ab"] == [2, 3]


@pytest.mark.parametrize("policy", ["lru", "rr"])
def test_memory_adds_up_under_pressure(trajectories, policy):
    items = trajectories("swe-bench", 8, tokens=1 / 16, gaps=0.01, max_turns=12, max_context=1_500)
    run = Run(
        baseline(policy), 6, 2_000, check=True, settings=Settings(overlap=True, chunked_prefill_size=256)
    )
    outcome = Simulation(run, items, MeasuredCost(Coefficients(0.01, 1e-4, 0.005))).run()
    assert outcome.finished
    assert len(outcome.requests) == sum(len(item.turns) for item in items)
    assert outcome.evicted_tokens > 0


def test_retracted_requests_are_served_in_full():
    # Prompts fit together, outputs do not: the clients may stop early, so nothing is reserved for all of them.
    items = [one(f"t{number}", 60, 150) for number in range(4)]
    run = Run(
        baseline("lru"), 4, 745, ramp_s=2.0, max_new_tokens=160, check=True, settings=Settings(overlap=True)
    )  # fmt: skip
    outcome = Simulation(run, items, COST).run()
    assert outcome.retractions > 0
    assert [item.output_tokens for item in outcome.requests] == [150] * 4
