import asyncio

import pytest

from eval.calibrate import MIN_GAP_FACTOR, Speed, gap_factor, service_s
from eval.closed_loop import Replay, ReplayConfig, hint, next_call
from eval.records import RequestRecord
from eval.trace import Trajectory, Turn


def tool_turn(**changes: object) -> Turn:
    fields = {"kind": "tool", "prompt_tokens": 50, "new_input_tokens": 10, "output_tokens": 5, "gap_s": 2.5}
    return Turn(**(fields | changes))


def make(*turns: Turn, **changes: object) -> Trajectory:
    first = Turn(kind="user", prompt_tokens=40, new_input_tokens=40, output_tokens=5)
    fields = {"trajectory_id": "t", "session_group": "g", "source": "s"}
    return Trajectory(turns=[first, *turns], **(fields | changes))


def test_hint_announces_the_call_that_triggers_the_next_turn() -> None:
    item = make(tool_turn(tool_name="grep", tool_args='{"q": 1}'), tool_turn(kind="user"), parent="up")
    first, second, last = (hint(item, index, oracle=False)["agentcache"] for index in range(3))
    assert first == {
        "trajectory_id": "t",
        "parent_id": "up",
        "final": False,
        "tool_calls": [{"name": "grep", "arguments": '{"q": 1}'}],
    }
    assert second == {"trajectory_id": "t", "parent_id": "up", "final": False}
    assert last == {"trajectory_id": "t", "parent_id": "up", "final": True}


def test_true_idle_time_is_sent_to_an_oracle_only() -> None:
    item = make(tool_turn(tool_name="grep"))
    assert "expected_idle_s" not in hint(item, 0, oracle=False)["agentcache"]
    assert hint(item, 0, oracle=True)["agentcache"]["expected_idle_s"] == 2.5
    assert "expected_idle_s" not in hint(item, 1, oracle=True)["agentcache"]


def test_parallel_calls_are_all_announced() -> None:
    turn = tool_turn(
        tool_name="grep", tool_args='{"q": 1}', tools=[("grep", 1.0), ("ls", 0.1), ("grep", 2.5)]
    )
    assert next_call(turn) == [
        {"name": "grep", "arguments": "{}"},
        {"name": "ls", "arguments": "{}"},
        {"name": "grep", "arguments": '{"q": 1}'},
    ]
    assert next_call(tool_turn()) == []
    assert next_call(tool_turn(kind="user", tool_name="grep")) == []


def test_unreachable_server_is_an_error_per_trajectory_not_a_hang() -> None:
    seen: list[RequestRecord] = []
    items = [make(tool_turn(), trajectory_id=str(i)) for i in range(5)]
    # Port 9 (discard) is not served here; connections are refused.
    replay = Replay(ReplayConfig("http://127.0.0.1:9", concurrency=2), items, seen.append)
    outcome = asyncio.run(replay.run())
    assert outcome.finished
    assert [record.turn for record in outcome.requests] == [0] * 5
    assert all(record.error and record.ttft_s is None for record in outcome.requests)
    assert outcome.session_s == []
    assert seen == outcome.requests


def test_pressure_counts_shared_prefixes_once() -> None:
    items = [make(trajectory_id=str(i), shared_prefix_id="p", shared_prefix_tokens=30) for i in range(3)]
    outcome = asyncio.run(Replay(ReplayConfig("http://127.0.0.1:9", concurrency=3), items).run())
    # Each sends 40 + 5 tokens, 30 of them shared; all three are in flight when the last one is sent.
    assert sorted(record.active_tokens for record in outcome.requests) == [45, 60, 75]
    assert sorted(record.live_tokens for record in outcome.requests) == [45, 60, 75]


def test_gap_factor_reaches_the_utilisation() -> None:
    items = [make(tool_turn(gap_s=1.0), tool_turn(prompt_tokens=65, gap_s=3.0))]
    speed = Speed(prompt_tokens=100, cold_s=0.11, cached_s=0.01, decode_step_s=0.004)
    service = service_s(items, speed, lost_share=0.5)
    # 15 decode steps in 3 turns, two at a time; per turn 20 new tokens and half of the kept 0, 40 and 55.
    kept = (0 + 40 + 55) / 3
    assert service == pytest.approx(0.01 + (20 + 0.5 * kept) * 0.001 + 5 * 0.002)
    factor = gap_factor(items, service, concurrency=8, utilisation=0.5, longest_s=1e9)
    mean_gap = factor * 4.0 / 3
    assert 8 * service / (service + mean_gap) == pytest.approx(0.5)
    short = gap_factor(items, service, concurrency=8, utilisation=0.5, longest_s=0.2)
    assert 3 * (service + short * 4.0 / 3) / 8 == pytest.approx(0.2)
    assert gap_factor(items, service, 8, 0.5, longest_s=1e-9) == MIN_GAP_FACTOR
