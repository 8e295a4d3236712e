"""The cost model behaves like hardware, and its profiles have the published sizes."""

import json

import numpy as np
import pytest

from eval.sim.cost import GPUS, MODELS, MeasuredCost, RooflineCost, roofline


@pytest.fixture(params=[(model, gpu) for model in MODELS for gpu in GPUS], ids=lambda pair: "-".join(pair))
def cost(request: pytest.FixtureRequest) -> RooflineCost:
    return roofline(*request.param)


def test_kv_bytes_per_token():
    assert MODELS["qwen3-8b"].kv_bytes == 147_456
    assert MODELS["qwen3-coder-30b-a3b"].kv_bytes == 98_304
    assert MODELS["qwen2.5-coder-32b"].kv_bytes == 262_144


def test_capacity_is_what_is_left_beside_the_weights():
    # 141 GB x 0.87 less 16.4 GB of weights, at 147,456 bytes a token.
    assert roofline("qwen3-8b", "h200").capacity_tokens() == pytest.approx(720_800, rel=0.001)
    assert roofline("qwen3-8b", "h100").capacity_tokens() < roofline("qwen3-8b", "h200").capacity_tokens()


def test_prefill_is_convex_in_length_and_costs_more_behind_a_history(cost: RooflineCost):
    short, long = cost.prefill([(0, 8_000)]), cost.prefill([(0, 16_000)])
    assert long > 2 * short - 0.01
    assert cost.prefill([(50_000, 2_000)]) > cost.prefill([(0, 2_000)])
    assert cost.prefill([(0, 100_000)]) > 5 * cost.prefill([(0, 20_000)]) * 1.02


def test_batching_saves_the_fixed_part(cost: RooflineCost):
    assert cost.prefill([(0, 100)] * 8) < 8 * cost.prefill([(0, 100)])


def test_a_short_prefill_cannot_beat_reading_the_weights():
    cost = roofline("qwen2.5-coder-32b", "h100")
    # 65.6 GB over two GPUs of 3.35 TB/s.
    assert cost.prefill([(0, 1)]) > 65.6e9 / 6.7e12
    assert cost.prefill([(0, 64)]) == pytest.approx(cost.prefill([(0, 1)]), rel=0.05)


def test_decode_steps_grow_with_context_and_little_with_batch(cost: RooflineCost):
    steps = cost.decode(16, 16 * 10_000, 100)
    assert steps.shape == (100,) and (np.diff(steps) > 0).all()
    one, sixteen = cost.decode(1, 20_000, 1)[0], cost.decode(16, 20_000, 1)[0]
    assert sixteen < 16 * one
    assert 0.002 < one < 0.05, "a decode step of these models takes milliseconds"


def test_decode_of_k_steps_is_k_times_one_step(cost: RooflineCost):
    together = cost.decode(4, 4_000, 3)
    assert together == pytest.approx([cost.decode(4, 4_000 + 4 * step, 1)[0] for step in range(3)])


def test_a_mixture_of_experts_reads_few_weights_for_few_tokens():
    cost = roofline("qwen3-coder-30b-a3b", "h200")
    assert cost.decode(1, 0, 1)[0] < cost.decode(64, 0, 1)[0] * 0.5


def test_measured_profile_is_linear(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(
        json.dumps(
            {"prefill_step_s": 0.01, "prefill_token_s": 1e-5, "decode_step_s": 0.002, "prefill_pair_s": 1e-9}
        )
    )
    cost = MeasuredCost.read(path)
    # 1,000 tokens, each attending to 500 resident ones and on average 500.5 new ones.
    assert cost.prefill([(500, 1_000)]) == pytest.approx(0.01 + 0.01 + 1_000 * 1_000.5e-9)
    assert cost.decode(3, 100, 2) == pytest.approx([0.002, 0.002])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object"),
        ('{"prefill_step_s": 1, "speed": 2}', "decode_step_s"),
        ('{"prefill_step_s": -1}', "prefill_step_s"),
        ('{"prefill_step_s": 1}', "prefill_token_s"),
    ],
)
def test_bad_profiles_are_refused_by_name(tmp_path, content: str, named: str):
    path = tmp_path / "cost.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=named):
        MeasuredCost.read(path)


@pytest.mark.parametrize(
    ("model", "gpu", "flag"), [("gpt", "h200", "--model"), ("qwen3-8b", "a100", "--gpu")]
)
def test_unknown_names_are_refused(model: str, gpu: str, flag: str):
    with pytest.raises(ValueError, match=flag):
        roofline(model, gpu)
