import gzip
import json

import pytest

from sglang_agentcache.predictor.records import read_records
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait

TRAJECTORY = {
    "trajectory_id": "t1",
    "session_group": "g1",
    "agent": "claude-code",
    "source": "s/one",
    "turns": [
        {"kind": "user", "gap_s": None},
        {"kind": "tool", "gap_s": 2.5, "tool_name": "Bash", "tool_args": '{"command": "ls"}'},
        {
            "kind": "tool",
            "gap_s": 4.0,
            "tool_name": "Read",
            "tool_args": "{}",
            "tools": [["Bash", 1.0], ["Read", 4.0], ["Glob", 2.0]],
        },
        {"kind": "tool", "gap_s": None, "tool_name": "Read", "tool_args": "{}"},
        {"kind": "user", "gap_s": 60.0},
    ],
}
LOG = [
    {
        "t_s": 5.0,
        "trajectory": "a",
        "name": "Bash",
        "arguments": {"command": "ls"},
        "duration_s": 1.0,
        "censored": False,
    },
    {"t_s": 9.0, "trajectory": "a", "name": None, "arguments": "", "duration_s": 30.0, "censored": False},
    {"t_s": 1.0, "trajectory": "b", "name": "Read", "arguments": "{}", "duration_s": 3.0, "censored": False},
    {"t_s": 1.0, "trajectory": "b", "name": "Glob", "arguments": "{}", "duration_s": 3.0, "censored": False},
    {"t_s": 6.0, "trajectory": "b", "name": "Task", "arguments": "{}", "duration_s": 700.0, "censored": True},
]


def written(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_a_trace(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(TRAJECTORY) + "\n").encode()))
    records = read_records([path])
    assert records.durations == [2.5, 4.0, 60.0]
    assert records.waits[0] == Wait((ToolCall("Bash", '{"command": "ls"}'),))
    assert {call.name for call in records.waits[1].calls} == {"Bash", "Read", "Glob"}
    assert records.waits[2] == Wait()
    assert (records.sessions[0], records.groups[0], records.agents[0], records.sources[0]) == (
        "t1",
        "g1",
        "claude-code",
        "s/one",
    )


def test_a_call_log(tmp_path):
    records = read_records([written(tmp_path / "calls.jsonl", LOG)])
    assert [len(wait.calls) for wait in records.waits] == [1, 0, 2, 1]
    assert records.durations == [1.0, 30.0, 3.0, 700.0]
    assert records.censored == [False, False, False, True]
    assert records.sessions == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "3",
        '{"turns": 3, "trajectory_id": "x"}',
        '{"name": "x", "duration_s": 1}',
        '{"trajectory": "x", "name": "x", "duration_s": NaN}',
        '{"trajectory": "x", "name": "x", "duration_s": "soon"}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(LOG[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: neither"):
        read_records([path])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        read_records([tmp_path / "absent"])
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(LOG[0]).encode() * 50)[:-9])
    with pytest.raises(ValueError, match=r"cut\.gz"):
        read_records([cut])


def test_a_split_keeps_groups_whole(records):
    train, held = records.split()
    assert len(train) + len(held) == len(records)
    assert not {records.groups[i] for i in train} & {records.groups[i] for i in held}
    assert 0.1 < len(held) / len(records) < 0.45
