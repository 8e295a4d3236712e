"""Which header or body field names the trajectory, and which wins."""

import json

import pytest

from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving.carriers import Carried, ResponseChains, attach, find, member, payloads
from sglang_agentcache.serving.hints import HintError, Hints, unpack

# From the strongest carrier to the weakest: (source, session_id, headers, body, id).
CARRIERS = [
    ("session_id", "s0", {}, {}, "s0"),
    ("dynamo", None, {"x-dynamo-session-id": "s1"}, {}, "s1"),
    ("claude-code", None, {"x-claude-code-session-id": "s2"}, {}, "s2"),
    ("codex", None, {"session-id": "s3"}, {}, "s3"),
    ("opencode", None, {"x-session-id": "s4"}, {}, "s4"),
    ("header", None, {"x-correlation-id": "s5"}, {}, "s5"),
    ("anthropic-user", None, {}, {"metadata": {"user_id": "s6"}}, "s6"),
    ("prompt-cache-key", None, {}, {"prompt_cache_key": "s7"}, "s7"),
]


@pytest.mark.parametrize("strongest", range(len(CARRIERS)))
def test_precedence(strongest):
    session_id, headers, body = None, {}, {}
    for _, session, more_headers, more_body, _ in CARRIERS[strongest:]:
        session_id = session_id or session
        headers |= more_headers
        body |= more_body
    source, expected = CARRIERS[strongest][0], CARRIERS[strongest][4]
    found, found_source = find(session_id, headers, body)
    assert (found.trajectory_id, found_source) == (expected, source)


def test_nothing_carried():
    assert find(None, {"content-type": "application/json"}, {"model": "m"}) == (Hints(), "")


@pytest.mark.parametrize("bad", ["", "  ", "x" * 257, "a\x01b", "a\tb"])
def test_a_malformed_carrier_is_passed_over(bad):
    headers = {"x-dynamo-session-id": bad, "x-session-id": "good"}
    assert find(bad, headers, {}) == (Hints(trajectory_id="good"), "opencode")
    assert find(7, {}, {"prompt_cache_key": 7, "metadata": "x"}) == (Hints(), "")


def test_dynamo_session():
    headers = {
        "x-dynamo-session-id": "s",
        "x-dynamo-parent-session-id": "p",
        "x-dynamo-session-final": "True",
    }
    assert find(None, headers, {})[0] == Hints(trajectory_id="s", parent_id="p", final=True)
    assert find(None, headers | {"x-dynamo-session-final": "false"}, {})[0].final is None
    assert find(None, {"x-dynamo-session-final": "true"}, {}) == (Hints(), "")


def test_dynamo_headers_add_to_the_same_session_in_the_body_only():
    headers = {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}
    assert find("s", headers, {}) == (Hints(trajectory_id="s", final=True), "session_id")
    assert find("other", headers, {}) == (Hints(trajectory_id="other"), "session_id")


def test_claude_code_subagents():
    session = {"x-claude-code-session-id": "s"}
    child = session | {"x-claude-code-agent-id": "a"}
    grandchild = session | {"x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"}
    assert find(None, session, {})[0] == Hints(trajectory_id="s")
    assert find(None, child, {})[0] == Hints(trajectory_id=member("s", "a"), parent_id="s")
    assert find(None, grandchild, {})[0] == Hints(trajectory_id=member("s", "b"), parent_id=member("s", "a"))
    assert find(None, {"x-claude-code-agent-id": "a"}, {}) == (Hints(), "")


def test_members_of_different_sessions_never_share_an_id():
    pairs = [
        ("a", "b"),
        ("a/b", ""),
        ("a", "b/c"),
        ("a/b", "c"),
        ('a","b', "c"),
        ("a", 'b","c'),
        ("a b", "c"),
    ]
    ids = [member(session, agent) for session, agent in pairs]
    assert len(set(ids)) == len(pairs)
    assert not set(ids) & {session for session, _ in pairs}
    assert member("é", "a") == '["é","a"]'
    assert member("s" * 200, "a" * 200) is None


def test_codex_threads():
    assert find(None, {"session-id": "s", "thread-id": "s"}, {})[0] == Hints(trajectory_id="s")
    child = {"session-id": "s", "thread-id": "t"}
    assert find(None, child, {})[0] == Hints(trajectory_id=member("s", "t"), parent_id="s")
    nested = child | {"x-codex-parent-thread-id": "u"}
    assert find(None, nested, {})[0].parent_id == member("s", "u")


def test_codex_turn_metadata():
    def headers(value: object) -> dict[str, str]:
        return {"x-codex-turn-metadata": value if isinstance(value, str) else json.dumps(value)}

    turn = {"session_id": "s", "thread_id": "t", "parent_thread_id": "s", "turn_id": "9"}
    assert find(None, headers(turn), {}) == (Hints(trajectory_id=member("s", "t"), parent_id="s"), "codex")
    assert (
        find(None, headers(turn) | {"session-id": "other", "thread-id": "other"}, {})[0].trajectory_id
        == "other"
    )
    for junk in ("raw", "[1]", "{", "null", "[" * 100_000, {"session_id": 5}):
        assert find(None, headers(junk), {}) == (Hints(), "")


def test_opencode_parent():
    headers = {"x-session-id": "b", "x-parent-session-id": "a"}
    assert find(None, headers, {})[0] == Hints(trajectory_id="b", parent_id="a")
    assert find(None, headers | {"x-parent-session-id": "b"}, {})[0].parent_id is None


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        ("user_ab12_account_cd-34_session_0f8c-11", "0f8c-11"),
        ('{"device_id": "d", "account_uuid": "", "session_id": "0f8c-11"}', "0f8c-11"),
        ("alice", "alice"),
        ("x" * 300, None),
    ],
)
def test_anthropic_user_id(user_id, expected):
    assert find(None, {}, {"metadata": {"user_id": user_id}})[0].trajectory_id == expected


def test_chained_responses_share_the_first_id():
    chains = ResponseChains()
    assert chains.follow(None, "resp_1") == Hints()
    assert chains.follow("resp_1", "resp_2") == Hints(trajectory_id="resp_1")
    assert chains.follow("resp_2", "resp_3") == Hints(trajectory_id="resp_1")
    assert chains.follow("resp_1", "resp_4") == Hints(trajectory_id="resp_1")
    assert chains.follow(5, "resp_5") == Hints()


def test_chains_are_bounded():
    chains = ResponseChains(limit=2)
    for step in range(100):
        chains.follow(f"resp_{step}", f"resp_{step + 1}")
    assert len(chains._first) == 2


def envelope(*actions: dict) -> dict:
    return {"protocol_version": "1", "message_id": "m", "actions": list(actions)}


def action(payload: object, version: str = "1", kind: str = "agentcache.trajectory") -> dict:
    return {"action_id": "a", "action_type": kind, "action_version": version, "payload": payload}


def test_payloads_of_a_batch_are_all_seen_with_their_place():
    params = [{"custom_params": {"agentcache": 1}}, {}, {"custom_params": {"agentcache": 2}}]
    hints = [None, envelope(action(3, kind="other"), action(4))]
    assert list(payloads(params, hints)) == [
        ("kv_hints[1].actions[1].payload", 4),
        ("sampling_params[0].custom_params.agentcache", 1),
        ("sampling_params[2].custom_params.agentcache", 2),
    ]
    assert list(payloads(params[0], envelope(action(5, "1.2")))) == [
        ("kv_hints.actions[0].payload", 5),
        ("sampling_params.custom_params.agentcache", 1),
    ]


@pytest.mark.parametrize(
    "junk", [None, {}, [], "x", {"actions": "x"}, {"actions": [5]}, {"custom_params": 5}]
)
def test_payloads_of_junk_are_none(junk):
    assert list(payloads(junk, junk)) == []


def test_an_unread_action_version_is_named():
    with pytest.raises(HintError, match=r"kv_hints\.actions\[0\]\.action_version"):
        list(payloads(None, envelope(action({}, "2"))))


def packed(sampling_params: object) -> tuple[Hints, str]:
    assert isinstance(sampling_params, dict)
    return unpack(sampling_params["custom_params"]["agentcache"], "p")


FOUND = Carried(found=Hints(trajectory_id="f", parent_id="fp"), source="codex")


@pytest.mark.parametrize(
    "params", [None, {}, {"temperature": 0}, {"custom_params": None}, {"custom_params": {"k": 1}}]
)
def test_what_was_found_is_packed_beside_what_is_there(params):
    before = json.dumps(params)
    result = attach(params, FOUND, 1)
    assert packed(result) == (FOUND.found, "codex")
    assert json.dumps(params) == before
    assert isinstance(result, dict)
    rest = {name: value for name, value in result["custom_params"].items() if name != "agentcache"}
    assert rest == ((params or {}).get("custom_params") or {})


def test_an_explicit_payload_is_completed_by_what_was_found():
    params = {
        "custom_params": {"agentcache": {"final": True, "tool_calls": [{"name": "a", "arguments": {}}]}}
    }
    expected = Hints("f", "fp", True, (ToolCall("a", "{}"),))
    assert packed(attach(params, FOUND, 1)) == (expected, "codex")
    named = {"custom_params": {"agentcache": {"trajectory_id": "mine"}}}
    assert packed(attach(named, FOUND, 1)) == (Hints(trajectory_id="mine"), "hint")


def test_declared_in_a_body_whose_request_class_drops_it():
    carried = FOUND._replace(declared=Hints(trajectory_id="d", final=True))
    assert packed(attach({}, carried, 1)) == (Hints(trajectory_id="d", final=True), "hint")


def test_nothing_carried_changes_nothing():
    params = {"temperature": 0}
    assert attach(params, Carried(), 1) is params
    assert attach(None, Carried(), 1) is None
    assert attach("junk", FOUND, 1) == "junk"


def test_a_batch_keeps_each_items_payload():
    params = [{"custom_params": {"agentcache": {"trajectory_id": "a"}}}, {"top_k": 1}]
    result = attach(params, FOUND, 2)
    assert isinstance(result, list)
    assert packed(result[0]) == (Hints(trajectory_id="a"), "hint")
    assert result[1] == {"top_k": 1}


def test_what_is_malformed_does_not_travel():
    bad = {"custom_params": {"agentcache": {"tool_calls": [[]]}, "k": 1}}
    assert attach(bad, Carried(), 1) == {"custom_params": {"k": 1}}
    assert packed(attach(bad, FOUND, 1)) == (FOUND.found, "codex")


def test_packing_twice_changes_nothing():
    once = attach({"custom_params": {"agentcache": {"tool_calls": [{"name": "a"}]}}}, FOUND, 1)
    assert attach(once, FOUND, 1) == once
