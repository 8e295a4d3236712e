"""The call log: what stands in it, how large it becomes, and that nothing about it stops a server."""

import json
import logging
import os
import threading

import pytest

from sglang_agentcache.predictor.records import read_records
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait
from sglang_agentcache.scheduling import call_log
from sglang_agentcache.scheduling.call_log import CallLog, hashed
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

KEY = TrajectoryKey(Namespace("tenant", "salt"), "agent-of-alice")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_reads_what_was_logged(path):
    log = CallLog(path, 1 << 20)
    log.add(KEY, (ToolCall("bash", '{"command": "ls"}'),), 0.5)
    log.add(KEY, (ToolCall("read", {"file": "a"}), ToolCall("grep")), 2.25)
    log.add(KEY, (), 60.0)
    log.add(KEY, (ToolCall("bash"),), 30.0, censored=True)
    log.close()

    records = read_records([path])
    by_duration = dict(zip(records.durations, records.waits, strict=True))
    assert by_duration == {
        0.5: Wait((ToolCall("bash", '{"command": "ls"}'),)),
        2.25: Wait((ToolCall("read", '{"file": "a"}'), ToolCall("grep"))),
        60.0: Wait(),
        30.0: Wait((ToolCall("bash"),)),
    }
    assert [censored for _, censored in sorted(zip(records.durations, records.censored, strict=True))] == [
        False,
        False,
        True,
        False,
    ]
    assert len(set(records.sessions)) == 1


def test_a_line_has_the_documented_fields_and_no_id(path):
    log = CallLog(path, 1 << 20)
    log.add(KEY, (ToolCall("bash"),), 1.0)
    log.close()
    (line,) = lines(path)
    assert list(line) == ["t_s", "trajectory", "name", "arguments", "duration_s", "censored"]
    text = path.read_text()
    assert not any(secret in text for secret in ("alice", "tenant", "salt"))
    assert hashed(KEY) == line["trajectory"]
    assert hashed(KEY) != hashed(TrajectoryKey(Namespace("tenant", None), "agent-of-alice"))


def test_what_a_model_writes_is_bounded_and_stays_one_line(path):
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    log = CallLog(path, 1 << 20)
    log.add(KEY, (ToolCall("b\n\x00" + "x" * 5_000, "\ud800\n" + "y" * (1 << 20)), ToolCall("c", deep)), 1.0)
    log.add(KEY, (ToolCall("many"),) * 1_000, 1.0)
    log.close()
    logged = lines(path)
    assert len(logged) == 2 + call_log.MAX_CALLS
    assert len(logged[0]["name"]) == call_log.MAX_NAME_CHARS
    assert len(logged[0]["arguments"]) == call_log.MAX_ARGUMENTS_CHARS
    assert logged[1]["arguments"] == ""


def test_two_files_of_bounded_size(path):
    log = CallLog(path, 64 << 10)
    for number in range(4_000):
        log.add(KEY, (ToolCall(f"tool-{number}", "x" * 100),), 1.0)
        if number % 1_000 == 0:
            while not log._queue.empty():
                pass
    log.close()
    assert sorted(os.listdir(path.parent)) == ["calls.jsonl", "calls.jsonl.1"]
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 64 << 10
    assert lines(path)[-1]["name"] == "tool-3999"


@pytest.mark.parametrize("place", ["missing/calls.jsonl", "."])
def test_a_path_that_cannot_be_written_is_told_once(tmp_path, place, caplog):
    log = CallLog(tmp_path / place, 1 << 20)
    for _ in range(5):
        log.add(KEY, (), 1.0)
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path) in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_once(tmp_path, caplog):
    (tmp_path / "log").symlink_to("/dev/full")
    log = CallLog(tmp_path / "log", 1 << 20)
    for _ in range(5):
        log.add(KEY, (), 1.0)
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_slow_disk_loses_lines_but_never_waits(path, caplog, monkeypatch):
    monkeypatch.setattr(call_log, "_MAX_QUEUED", 10)
    log = CallLog(path, 1 << 20)
    held = threading.Event()
    monkeypatch.setattr(log._file, "emit", lambda record: held.wait())
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            log.add(KEY, (), 1.0)
    held.set()
    log.close()
    assert [record.message for record in caplog.records] == [
        "agentcache: the call log cannot keep up; lines are lost"
    ]
