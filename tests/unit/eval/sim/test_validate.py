"""What the validation compares."""

import pytest

from eval.calibrate import Speed
from eval.records import RequestRecord
from eval.sim.cost import MeasuredCost
from eval.sim.validate import agreements, coefficients


def record(turn: int, cached: int) -> RequestRecord:
    return RequestRecord(
        trajectory_id="t", source="test", turn=turn, kind="tool", tool_name=None, sent_s=0.0, gap_s=0.0,
        prompt_tokens=100, history_tokens=0, cached_tokens=cached,
    )  # fmt: skip


def test_errors_are_relative_to_the_server():
    found = agreements([record(0, 0), record(1, 60)], [record(1, 50), record(0, 0)])
    assert [item.statistic for item in found] == ["p50", "p99", "mean"]
    assert (found[2].server, found[2].simulator) == (70.0, 75.0)
    assert found[2].error == pytest.approx(5 / 70)


def test_other_requests_cannot_be_compared():
    with pytest.raises(ValueError, match="not the same requests"):
        agreements([record(0, 0)], [record(1, 0)])


def test_a_probe_gives_step_times_that_add_up_to_what_it_measured():
    speed = Speed(prompt_tokens=1_000, cold_s=0.050, cached_s=0.010, decode_step_s=0.002)
    cost = MeasuredCost(coefficients(speed))
    assert cost.request_s + cost.prefill([(0, 1_000)]) == pytest.approx(0.050)
    assert cost.decode(1, 1_000, 1)[0] == 0.002
