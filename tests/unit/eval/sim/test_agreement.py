"""Statistics of a server and of simulations of it."""

import pytest

from eval.records import RequestRecord
from eval.sim.agreement import agreements


def record(turn: int, cached: int) -> RequestRecord:
    return RequestRecord(
        trajectory_id="t", source="test", turn=turn, kind="tool", tool_name=None, sent_s=0.0, gap_s=0.0,
        prompt_tokens=100, history_tokens=0, cached_tokens=cached,
    )  # fmt: skip


def test_errors_are_relative_to_the_server():
    found = agreements([record(0, 0), record(1, 60)], [[record(1, 50), record(0, 0)]])
    assert [item.statistic for item in found] == ["p50", "p99", "mean"]
    assert (found[2].server, found[2].simulator) == (70.0, 75.0)
    assert found[2].error == pytest.approx(5 / 70)


def test_other_requests_cannot_be_compared():
    with pytest.raises(ValueError, match="not the same requests"):
        agreements([record(0, 0)], [[record(1, 0)]])


def test_several_simulations_count_with_their_mean_and_their_spread():
    mean = agreements([record(0, 50)], [[record(0, 40)], [record(0, 60)]])[2]
    assert (mean.server, mean.simulator, mean.error) == (50.0, 50.0, 0.0)
    assert mean.spread == pytest.approx(200**0.5 / 50)
