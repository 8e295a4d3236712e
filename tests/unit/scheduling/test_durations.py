"""Per-tool counts and durations for `GET /server_info`."""

import pytest

from sglang_agentcache.predictor.tool_calls import PERSON, ToolCall
from sglang_agentcache.scheduling import durations
from sglang_agentcache.scheduling.durations import ToolDurations


def test_counts_and_durations():
    seen = ToolDurations()
    seen.add((ToolCall("bash"),), 1.0)
    seen.add((ToolCall("bash"), ToolCall("bash"), ToolCall("read")), 4.0)
    seen.add((), 100.0)
    assert seen.most_frequent() == {
        "bash": {"count": 2, "mean_s": 2.5, "typical_s": pytest.approx(2.0)},
        PERSON: {"count": 1, "mean_s": 100.0, "typical_s": pytest.approx(100.0)},
        "read": {"count": 1, "mean_s": 4.0, "typical_s": pytest.approx(4.0)},
    }


def test_no_time_at_all():
    seen = ToolDurations()
    seen.add((), 0.0)
    assert seen.most_frequent()[PERSON]["mean_s"] == 0.0


def test_bounded():
    seen = ToolDurations()
    for number in range(5_000):
        seen.add((ToolCall(f"{number}-" + "x" * 1_000),), 1.0)
        seen.add((ToolCall("bash"),), 1.0)
    assert len(seen._tools) == durations.MAX_TOOLS
    shown = seen.most_frequent()
    assert len(shown) == durations.SHOWN
    assert next(iter(shown)) == "bash"
    assert shown["bash"]["count"] == 5_000
