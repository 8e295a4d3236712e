"""The payload: what is accepted, how it is refused, and that it survives the way to the scheduler."""

import logging

import pytest

from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving import hints
from sglang_agentcache.serving.hints import Completion, HintError, Hints, pack, parse, unpack

FULL = {
    "trajectory_id": "run-7",
    "parent_id": "run-1",
    "final": True,
    "tool_calls": [{"name": "bash", "arguments": {"cmd": "ls"}}, {"name": "read", "arguments": '{"p":1}'}],
    "expected_idle_s": 3,
}


def test_every_field_is_read():
    assert parse(FULL, "x") == Hints(
        trajectory_id="run-7",
        parent_id="run-1",
        final=True,
        tool_calls=(ToolCall("bash", '{"cmd":"ls"}'), ToolCall("read", '{"p":1}')),
        expected_idle_s=3.0,
    )


def test_every_field_is_optional():
    assert parse({}, "x") == Hints()
    assert not Hints()
    assert Hints(final=False)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("run-7", "p"),
        ([], "p"),
        ({"trajectory": "run-7"}, "p.trajectory"),
        ({"source": "codex"}, "p.source"),
        ({"trajectory_id": 7}, "p.trajectory_id"),
        ({"trajectory_id": ""}, "p.trajectory_id"),
        ({"trajectory_id": "  "}, "p.trajectory_id"),
        ({"trajectory_id": "a\nb"}, "p.trajectory_id"),
        ({"trajectory_id": "\0" + "1"}, "p.trajectory_id"),
        ({"trajectory_id": "x" * 257}, "p.trajectory_id"),
        ({"parent_id": ["a"]}, "p.parent_id"),
        ({"trajectory_id": "a", "parent_id": "a"}, "p.parent_id"),
        ({"final": "true"}, "p.final"),
        ({"final": 1}, "p.final"),
        ({"tool_calls": "bash"}, "p.tool_calls"),
        ({"tool_calls": {"name": "bash"}}, "p.tool_calls"),
        ({"tool_calls": [{"name": "a"}] * 65}, "p.tool_calls"),
        ({"tool_calls": [{"name": "a"}, "b"]}, "p.tool_calls[1]"),
        ({"tool_calls": [{"arguments": "{}"}]}, "p.tool_calls[0].name"),
        ({"tool_calls": [{"name": "a", "arguments": 5}]}, "p.tool_calls[0].arguments"),
        ({"tool_calls": [{"name": "a", "arguments": "\ud800"}]}, "p.tool_calls[0].arguments"),
        ({"tool_calls": [{"name": "a", "id": "call_1"}]}, "p.tool_calls[0].id"),
        ({"expected_idle_s": "3"}, "p.expected_idle_s"),
        ({"expected_idle_s": True}, "p.expected_idle_s"),
        ({"expected_idle_s": -1}, "p.expected_idle_s"),
        ({"expected_idle_s": float("nan")}, "p.expected_idle_s"),
        ({"expected_idle_s": float("inf")}, "p.expected_idle_s"),
        ({"expected_idle_s": 10**400}, "p.expected_idle_s"),
    ],
)
def test_a_malformed_field_is_named(payload, field):
    with pytest.raises(HintError) as refused:
        parse(payload, "p")
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


def test_limits_are_inclusive_and_named():
    parse({"trajectory_id": "x" * 256, "tool_calls": [{"name": "a"}] * 64}, "p")
    parse({"tool_calls": [{"name": "a", "arguments": "é" * 32_768}]}, "p")
    with pytest.raises(HintError, match="65538 bytes; at most 65536"):
        parse({"tool_calls": [{"name": "a", "arguments": "é" * 32_769}]}, "p")
    with pytest.raises(HintError, match="at most 65536"):
        parse({"tool_calls": [{"name": "a", "arguments": {"text": "x" * 65_536}}]}, "p")
    with pytest.raises(HintError, match="at most 64 "):
        parse({"tool_calls": [{"name": "a"}] * 65}, "p")


def test_arguments_nested_too_deeply_are_refused():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(HintError, match="reasonable depth"):
        parse({"tool_calls": [{"name": "a", "arguments": deep}]}, "p")


def test_packed_hints_come_back_and_hold_only_scalars():
    packed = pack(parse(FULL, "p"), "codex")
    assert all(isinstance(value, str | bool | float) for value in packed.values())
    assert unpack(packed, "p") == (parse(FULL, "p"), "codex")
    assert unpack(pack(Hints(final=False, tool_calls=()), ""), "p") == (Hints(final=False, tool_calls=()), "")


def test_unpack_reads_what_a_client_wrote():
    assert unpack(FULL, "p") == (parse(FULL, "p"), "hint")
    assert unpack(None, "p") == (Hints(), "")


@pytest.mark.parametrize(
    "payload", [7, "a", [], {"final": "no"}, {"tool_calls": "[{"}, {"tool_calls": '[{"name": 1}]'}, {"x": 1}]
)
def test_unpack_never_raises(payload):
    assert unpack(payload, "p") == (Hints(), "")


def test_malformed_hints_are_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(hints, "_warned", False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            unpack({"final": "no"}, "custom_params.agentcache")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "custom_params.agentcache.final" in caplog.text


def test_stronger_hints_win_field_by_field():
    weaker = Hints(trajectory_id="w", parent_id="wp", final=True, expected_idle_s=1.0)
    assert Hints(final=False).over(weaker) == Hints("w", "wp", False, None, 1.0)
    assert Hints(tool_calls=()).over(Hints(tool_calls=(ToolCall("a"),))).tool_calls == ()


def test_a_parent_stays_with_the_id_it_came_with():
    weaker = Hints(trajectory_id="w", parent_id="wp")
    assert Hints(trajectory_id="s").over(weaker) == Hints(trajectory_id="s")
    assert Hints(trajectory_id="w").over(weaker).parent_id == "wp"
    assert Hints(parent_id="p").over(weaker) == Hints(trajectory_id="w", parent_id="p")
    assert Hints(trajectory_id="s").over(Hints(parent_id="p")) == Hints(trajectory_id="s", parent_id="p")
    assert Hints(trajectory_id="s").over(Hints(parent_id="s")) == Hints(trajectory_id="s")


def test_completion_bodies():
    assert Completion.parse({"trajectory_id": "a"}) == Completion("a")
    full = {"trajectory_id": "a", "extra_key": "e", "cache_salt": ""}
    assert Completion.parse(full) == Completion("a", "e", None)
    assert Completion.parse({"trajectory_id": "a", "extra_key": None}) == Completion("a")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "body"),
        ([{"trajectory_id": "a"}], "body"),
        ({}, "trajectory_id"),
        ({"trajectory_id": 1}, "trajectory_id"),
        ({"trajectory_id": "a", "extra_key": 1}, "extra_key"),
        ({"trajectory_id": "a", "cache_salt": ["s"]}, "cache_salt"),
        ({"trajectory_id": "a", "id": "b"}, "id"),
    ],
)
def test_a_malformed_completion_is_named(body, field):
    with pytest.raises(HintError) as refused:
        Completion.parse(body)
    assert refused.value.field == field
