"""The validation's step times and workload."""

from itertools import pairwise

import pytest

from eval import workload
from eval.calibrate import Speed
from eval.sim.cost import Coefficients, MeasuredCost
from eval.sim.validate import NoisyCost, coefficients, shorten_outputs


def test_noise_is_seeded_and_leaves_the_mean():
    use = Coefficients(prefill_step_s=0.0, prefill_token_s=0.0, decode_step_s=1.0)
    first, again, other = (NoisyCost(use, seed).decode(1, 0, 10_000) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).all()
    assert first.mean() == pytest.approx(1.0, abs=0.01)


def test_a_probe_gives_step_times_that_add_up_to_what_it_measured():
    speed = Speed(1_000, cold_s=0.050, cached_s=0.010, decode_step_s=0.003, decode_request_s=0.001)
    cost = MeasuredCost(coefficients(speed))
    assert cost.request_s + cost.prefill([(0, 1_000)]) == pytest.approx(0.050)
    assert cost.request_s + cost.prefill([(1_000, 0)]) == pytest.approx(0.010)
    assert cost.decode(1, 1_000, 1)[0] == pytest.approx(0.003)
    assert cost.decode(8, 8_000, 1)[0] == pytest.approx(0.010)


def test_the_server_s_sleep_is_not_scaled():
    speed = Speed(1_000, cold_s=0.050, cached_s=0.010, decode_step_s=0.003)
    fast, slow = (MeasuredCost(coefficients(speed, 0.1, factor)) for factor in (1.0, 2.0))
    assert slow.decode(1, 0, 1)[0] - 0.1 == pytest.approx(2 * (fast.decode(1, 0, 1)[0] - 0.1))
    assert slow.prefill([(0, 500)]) - 0.1 == pytest.approx(2 * (fast.prefill([(0, 500)]) - 0.1))


def test_shorter_outputs_shorten_the_prompts_after_them():
    (item,) = workload.generate("swe-bench", 1, 0)
    short = shorten_outputs(item, 0.2)
    assert sum(turn.output_tokens for turn in short.turns) < 0.25 * sum(t.output_tokens for t in item.turns)
    assert [turn.new_input_tokens for turn in short.turns] == [turn.new_input_tokens for turn in item.turns]
    for before, after in pairwise(short.turns):
        assert after.reset or after.kept_tokens == before.prompt_tokens + before.output_tokens
