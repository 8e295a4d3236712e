"""The trajectory of a request, as the scheduler sees it."""

import subprocess
import sys

import pytest

from sglang_agentcache.serving.hints import Hints, pack
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey, resolve


def action(payload: object, version: str = "1") -> dict:
    listed = {
        "action_id": "a",
        "action_type": "agentcache.trajectory",
        "action_version": version,
        "payload": payload,
    }
    return {"protocol_version": "1", "message_id": "m", "actions": [listed]}


def carrying(payload: object) -> dict:
    return {"agentcache": payload, "thinking_budget": 5}


def key(trajectory_id: str, extra_key: str | None = None, cache_salt: str | None = None) -> TrajectoryKey:
    return TrajectoryKey(Namespace(extra_key, cache_salt), trajectory_id)


def test_unknown():
    resolved = resolve(None, None, None, None, None)
    assert resolved == (None, "", Hints())


def test_precedence():
    packed = carrying(pack(Hints(trajectory_id="h"), "codex"))
    hint = action({"trajectory_id": "k"})
    assert resolve(packed, "s", hint, None, None)[:2] == (key("k"), "hint")
    assert resolve(packed, "s", None, None, None)[:2] == (key("h"), "codex")
    assert resolve(None, "s", None, None, None)[:2] == (key("s"), "session_id")
    assert resolve(carrying({"trajectory_id": "h"}), "s", None, None, None)[:2] == (key("h"), "hint")


def test_hints_without_an_id_join_the_id_found_further_down():
    packed = carrying(pack(Hints(trajectory_id="h", parent_id="p", final=False), "dynamo"))
    resolved = resolve(packed, None, action({"final": True, "expected_idle_s": 2}), None, None)
    assert resolved == (key("h"), "dynamo", Hints("h", "p", True, None, 2.0))
    session = resolve(carrying({"final": True}), "s", None, None, None)
    assert session == (key("s"), "session_id", Hints(trajectory_id="s", final=True))


def test_hints_without_any_id_are_kept_for_the_lineage():
    assert resolve(carrying({"final": True}), None, None, None, None) == (None, "", Hints(final=True))


def test_a_parent_does_not_move_to_another_id():
    packed = carrying(pack(Hints(trajectory_id="h", parent_id="p"), "dynamo"))
    assert resolve(packed, None, action({"trajectory_id": "k"}), None, None).hints.parent_id is None


def test_namespaces_are_never_joined():
    keys = {
        resolve(None, session, None, extra, salt).key
        for extra, salt, session in [
            ("a", "b", "c"),
            ("ab", None, "c"),
            (None, "ab", "c"),
            ("a", None, "bc"),
            (None, "a", "bc"),
            (None, None, "abc"),
        ]
    }
    assert len(keys) == 6
    assert resolve(None, "s", None, "", "").key == resolve(None, "s", None, None, None).key == key("s")


@pytest.mark.parametrize(
    "payload",
    [
        7,
        "a",
        [],
        {"trajectory_id": 5},
        {"trajectory_id": "\0" + "1"},
        {"tool_calls": "{"},
        {"final": "yes"},
        {"x": 1},
    ],
)
def test_malformed_hints_never_stop_a_request(payload):
    assert resolve(carrying(payload), "s", action(payload), None, None)[:2] == (key("s"), "session_id")


@pytest.mark.parametrize(
    "junk", [5, "x", [], {"actions": 5}, {"actions": [None]}, action({"final": True}, "9")]
)
def test_junk_in_the_carriers_is_ignored(junk):
    assert resolve(junk, "x" * 300, junk, None, None) == (None, "", Hints())


def test_imports_no_sglang():
    code = (
        "import sys; import sglang_agentcache.trajectory.identity, sglang_agentcache.serving.carriers;"
        "print([name for name in ('sglang', 'torch', 'fastapi') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
