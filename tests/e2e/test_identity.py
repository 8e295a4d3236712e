"""Every endpoint and every carrier leads to the right trajectory; namespaces never mix."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.support.e2e_client import Client, events, random_tokens
from tests.support.e2e_servers import RR, Running, on

pytestmark = on(RR)

MODEL = "tiny"


def chat(content: str = "Where were we?", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def completion(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **more}


def generation(**more: Any) -> dict[str, Any]:
    return {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}, **more}


CHAT, COMPLETIONS, MESSAGES, GENERATE = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/generate"
BODIES = {CHAT: chat, COMPLETIONS: completion, MESSAGES: chat, GENERATE: generation}
OURS = {"custom_params": {"agentcache": {"trajectory_id": "t"}}}
CLAUDE_CODE = {"X-Claude-Code-Session-Id": "session", "X-Claude-Code-Agent-Id": "agent"}
ACTION = {"action_type": "agentcache.trajectory", "action_version": "1.0", "payload": {"trajectory_id": "t"}}
ENVELOPE = {"protocol_version": "1.0", "message_id": "m", "actions": [{"action_id": "a", **ACTION}]}

CARRIERS = [
    (GENERATE, {"sampling_params": {"max_new_tokens": 8, **OURS}}, {}, "hint", "t"),
    (GENERATE, {"kv_hints": ENVELOPE}, {}, "hint", "t"),
    (GENERATE, {"session_id": "t"}, {}, "session_id", "t"),
    (GENERATE, {}, {"X-Dynamo-Session-ID": "t"}, "dynamo", "t"),
    (CHAT, OURS, {}, "hint", "t"),
    (CHAT, {"session_id": "t"}, {}, "session_id", "t"),
    (CHAT, {}, {"x-session-id": "t"}, "opencode", "t"),
    (CHAT, {}, {"session-id": "t"}, "codex", "t"),
    (CHAT, {"prompt_cache_key": "t"}, {}, "prompt-cache-key", "t"),
    (COMPLETIONS, OURS, {}, "hint", "t"),
    (COMPLETIONS, {"session_id": "t"}, {}, "session_id", "t"),
    (COMPLETIONS, {}, {"X-Correlation-ID": "t"}, "header", "t"),
    (MESSAGES, {}, CLAUDE_CODE, "claude-code", '["session","agent"]'),
    (MESSAGES, {}, {"x-claude-code-session-id": "t"}, "claude-code", "t"),
    (MESSAGES, {"metadata": {"user_id": "user_1_account_2_session_t"}}, {}, "anthropic-user", "t"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body", "headers", "source", "trajectory"),
    [
        pytest.param(*carrier, id=f"{carrier[0]}-{carrier[3]}-{index}")
        for index, carrier in enumerate(CARRIERS)
    ],
)
def test_a_carrier_names_the_trajectory(
    client: Client,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
    source: str,
    trajectory: str,
    stream: bool,
) -> None:
    with client.counted_sources() as sources:
        response = client.send(path, BODIES[path](stream=stream, **body), headers, stream=stream)
        assert response.ok, response.text
        assert list(events(response)) if stream else response.json()
    assert sources == {source: 1}
    # The id is the one that was sent: it can be completed, and then nothing is left.
    assert client.complete(trajectory)["known"] is True
    assert client.settled()["trajectories"] == {"active": 0, "idle": 0, "completed": 0}


def test_the_stronger_carrier_wins(client: Client) -> None:
    body = chat(session_id="weaker", prompt_cache_key="weakest", **OURS)
    with client.counted_sources() as sources:
        client.post(CHAT, body, {"x-session-id": "weak"})
    assert sources == {"hint": 1}
    assert client.complete("weaker")["known"] is False
    assert client.complete("t")["known"] is True


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_without_any_id_stays_one_trajectory(client: Client, stream: bool) -> None:
    """Two conversations under one system prompt; answers go back as the text that a client sees."""
    system = {"role": "system", "content": "You are a careful assistant. " * 20}
    conversations = [
        [system, {"role": "user", "content": f"{name} is my name; what did I tell you? " * 5}]
        for name in ("Ada", "Bob")
    ]
    for turn in range(4):
        for messages in conversations:
            body = {**chat(), "messages": messages, "stream": stream}
            with client.counted_sources() as sources:
                if stream:
                    body["stream_options"] = {"include_usage": True}
                    chunks = list(events(client.send(CHAT, body, stream=True)))
                    said = "".join(
                        chunk["choices"][0]["delta"].get("content") or ""
                        for chunk in chunks
                        if chunk["choices"]
                    )
                    usage = chunks[-1]["usage"]
                else:
                    answer = client.post(CHAT, body)
                    said, usage = answer["choices"][0]["message"]["content"], answer["usage"]
            assert sources == {"lineage": 1}
            if turn:
                assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] // 2
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": f"Go on, step {turn}."},
            ]
        assert client.settled()["trajectories"]["idle"] == len(conversations) if turn else True


@pytest.mark.parametrize("split", ["cache_salt", "extra_key"])
def test_namespaces_share_neither_kv_nor_trajectories(
    server: Running, client: Client, rng: random.Random, split: str
) -> None:
    prompt = random_tokens(rng, 600)
    namespaces: list[dict[str, str]] = [{}, {split: "a"}, {split: "b"}]
    for namespace in namespaces:
        assert client.generate(prompt, "same id", **namespace).cached == 0
    assert client.settled()["trajectories"]["idle"] == 3
    for namespace in namespaces:
        assert client.generate(prompt, "same id", **namespace).cached == len(prompt) - 1

    free = client.free_tokens()
    assert client.complete("same id", **{split: "a"})["released_tokens"] == len(prompt)
    assert client.free_tokens() - free == len(prompt)
    assert client.settled()["trajectories"]["idle"] == 2
    for namespace, cached in zip(namespaces, (len(prompt) - 1, 0, len(prompt) - 1), strict=True):
        assert client.generate(prompt, "same id", **namespace).cached == cached


def test_joined_namespaces_do_not_collide(client: Client, rng: random.Random) -> None:
    prompt = random_tokens(rng, 300)
    for namespace in ({"extra_key": "ab"}, {"cache_salt": "ab"}, {"extra_key": "a", "cache_salt": "b"}):
        assert client.generate(prompt, "same id", **namespace).cached == 0
    assert client.settled()["trajectories"]["idle"] == 3


def test_chat_honours_the_namespace(client: Client) -> None:
    for salt in ("a", "b"):
        usage = client.post(CHAT, chat(cache_salt=salt, session_id="same"))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert client.complete("same")["known"] is False
    assert client.complete("same", cache_salt="b")["known"] is True
    assert client.settled()["trajectories"]["idle"] == 1


def test_a_forks_completion_keeps_its_parents_history(
    server: Running, client: Client, rng: random.Random
) -> None:
    prompt = random_tokens(rng, 1_000)
    parent = prompt + client.generate(prompt, "parent", 4).output_ids
    # The parent stopped without KV for its last token; the first child computes it, and both then own it.
    for child, cached in (("child-1", len(parent) - 1), ("child-2", len(parent))):
        reply = client.generate(parent + random_tokens(rng, 500), child, 4, hints={"parent_id": "parent"})
        assert reply.cached == cached
    free = client.free_tokens()
    assert client.complete("child-1")["released_tokens"] == 503
    assert client.complete("child-2")["released_tokens"] == 504
    assert client.free_tokens() - free == 503 + 504
    # Now the parent's prompt is a leaf that no request has used for a while, yet it is nobody's to drop.
    assert client.generate(parent + random_tokens(rng, 50), "parent").cached == len(parent) - 1


def test_a_sub_agent_of_claude_code_leaves_its_session_alone(client: Client) -> None:
    main = {"X-Claude-Code-Session-Id": "s"}
    system = "A system prompt that the main agent and its sub-agents share. " * 8
    client.post(MESSAGES, chat("The main agent's question. " * 20, system=system), main)
    client.post(
        MESSAGES, chat("The sub-agent's task. " * 20, system=system), {**main, "X-Claude-Code-Agent-Id": "x"}
    )
    assert client.settled()["trajectories"]["idle"] == 2
    free = client.free_tokens()
    assert client.complete(json.dumps(["s", "x"], separators=(",", ":")))["released_tokens"] >= 400
    assert client.free_tokens() - free >= 400
    again = client.post(MESSAGES, chat("The main agent's question. " * 20, system=system), main)["usage"]
    assert again.get("cache_read_input_tokens", 0) > 900


def wrong(payload: object) -> dict[str, Any]:
    return {"custom_params": {"agentcache": payload}}


MALFORMED = [
    ({"final": "yes"}, "custom_params.agentcache.final"),
    ({"trajectory_id": 5}, "custom_params.agentcache.trajectory_id"),
    ({"trajectory_id": "x" * 257}, "custom_params.agentcache.trajectory_id"),
    ({"trajectory": "x"}, "custom_params.agentcache.trajectory"),
    ({"expected_idle_s": -1}, "custom_params.agentcache.expected_idle_s"),
    ({"tool_calls": [{"arguments": {}}]}, "custom_params.agentcache.tool_calls[0].name"),
    ("t", "custom_params.agentcache"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", list(BODIES))
def test_malformed_hints_are_refused_by_name(client: Client, path: str, stream: bool) -> None:
    for payload, field in MALFORMED:
        body = BODIES[path](stream=stream)
        if path == GENERATE:
            body["sampling_params"] = {"max_new_tokens": 8, **wrong(payload)}
        else:
            body |= wrong(payload)
        response = client.send(path, body)
        assert response.status_code == 400, response.text
        assert field + ":" in response.text
    assert client.settled()["trajectories"] == {"active": 0, "idle": 0, "completed": 0}


def test_a_kv_hint_of_another_version_is_refused(client: Client) -> None:
    envelope = {**ENVELOPE, "actions": [{"action_id": "a", **ACTION, "action_version": "2.0"}]}
    response = client.send(GENERATE, generation(kv_hints=envelope))
    assert response.status_code == 400
    assert "kv_hints.actions[0].action_version" in response.text
