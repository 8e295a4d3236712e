"""One prefill and one decode server: what the decode side sees reaches the prefill side, or is done without."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from eval.pd import START_S, Cluster, running
from sglang_agentcache import complete
from tests.support.e2e_client import random_tokens
from tests.support.pd_cluster import POOL_TOKENS, ROUTER, PdClient, roles, until
from tests.support.relay import Relay

CALL = r'<tool_call>\n\{"name": "compile", "arguments": \{"n": 1\}\}\n</tool_call>'


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    made = Relay()
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def servers(
    model: Path, relay: Relay, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, PdClient]]:
    prefill, decode = roles(
        *(model, "--radix-eviction-policy", "convex"),
        *("--radix-eviction-policy-config", '{"chunk_tokens": 128}'),
    )
    cluster = Cluster(
        tmp_path_factory.mktemp("pd"), prefill, decode, channel=relay.url, router_arguments=ROUTER
    )
    relay.target = cluster.cache_url
    with running(cluster):
        yield cluster, PdClient(cluster)


@pytest.fixture
def client(servers: tuple[Cluster, PdClient], relay: Relay) -> Iterator[PdClient]:
    client = servers[1]
    client.flush()
    yield client
    relay.delay_s = 0.0
    client.heard()
    client.assert_clean()


def test_hits_grow_from_turn_to_turn(client: PdClient, rng: random.Random) -> None:
    history, known = random_tokens(rng, 300), 0
    for _ in range(4):
        reply = client.generate(history, tokens=10)
        # The output's KV is on the decode side only.
        assert reply.cached == known
        known = len(history)
        history = history + reply.output_ids + random_tokens(rng, 50)
    assert client.prefill.settled()["trajectories"]["idle"] == 1


def test_what_the_client_says_gets_through_the_router(client: PdClient, rng: random.Random) -> None:
    with client.prefill.counted_sources() as seen:
        client.generate(random_tokens(rng, 100), "by-label")
        client.router.post(
            "/v1/chat/completions",
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 2,
                "metadata": {"agentcache": '{"trajectory_id": "by-metadata"}'},
            },
        )
    assert seen == {"hint": 2}


def test_a_tool_call_reaches_the_prefill_side(client: PdClient, rng: random.Random) -> None:
    prompt = random_tokens(rng, 200)
    params = {"max_new_tokens": 200, "temperature": 0, "regex": CALL}
    before = client.counter("hints.decode.applied")
    answer = client.router.post("/generate", {"input_ids": prompt, "sampling_params": params})
    assert "compile" in answer["text"]
    until(lambda: client.counter("hints.decode.applied") > before)
    time.sleep(1.0)

    reply = client.generate(prompt + answer["output_ids"] + random_tokens(rng, 10))

    assert reply.cached == len(prompt)
    tools = client.prefill.state()["tools"]
    assert tools["compile"]["count"] == 1
    # From the end of decoding: the time that decoding took is no part of the tool's.
    assert 0.9 < tools["compile"]["mean_s"] < 60


def test_final_in_the_body_releases_when_the_transfer_has_ended(client: PdClient, rng: random.Random) -> None:
    history = random_tokens(rng, 400)
    reply = client.generate(history, "agent", 5)
    reply = client.generate(history + reply.output_ids, "agent", 5, final=True)
    assert reply.cached == len(history)
    state = client.prefill.settled()
    assert state["trajectories"] == {"active": 0, "idle": 0, "completed": 0}
    assert state["pool"]["free_tokens"] == POOL_TOKENS


def test_completion_by_command_reaches_every_worker(
    client: PdClient, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    client.generate(random_tokens(rng, 300), "over")
    client.prefill.settled()
    urls = [word for server in client.servers for word in ("--url", server.url)]

    assert complete.main([*urls, "--trajectory", "over"]) == 0

    assert "300 tokens" in capsys.readouterr().out
    assert client.prefill.free_tokens() == POOL_TOKENS
    assert complete.main([*urls, "--trajectory", "over"]) == 1


def test_close_session_on_the_prefill_side(client: PdClient, rng: random.Random) -> None:
    body = {
        "model": "tiny",
        "prompt": "abc " * 40,
        "max_tokens": 2,
        "session_id": "closing",
    }
    client.router.post("/v1/completions", body)
    assert client.prefill.settled()["trajectories"]["idle"] == 1
    client.prefill.post("/close_session", {"session_id": "closing"})
    assert client.prefill.free_tokens() == POOL_TOKENS


def test_eviction_under_pressure(client: PdClient, rng: random.Random) -> None:
    histories = {f"agent-{number}": random_tokens(rng, 1_000) for number in range(12)}
    for name, history in histories.items():
        client.generate(history, name, 4)
    assert client.prefill.settled()["pool"]["free_tokens"] < 1_000
    lost = [1_000 - 1 - client.generate(history, name, 4).cached for name, history in histories.items()]
    assert any(lost)


def test_words_about_other_requests_change_nothing(
    client: PdClient, relay: Relay, rng: random.Random
) -> None:
    relay.stop()
    room = rng.getrandbits(62)
    client.pair(random_tokens(rng, 100), room, "mine", tokens=3)
    client.prefill.settled()
    told = {"room": room, "output_tokens": 3, "aborted": False, "tool_calls": [{"name": "x"}]}

    def outcome(message: dict[str, object]) -> dict[str, int]:
        response = client.tell(message)
        assert response.ok, response.text
        return response.json()["outcomes"]

    assert outcome({**told, "room": room + 1}) == {"unknown": 1}
    assert outcome({**told, "cache_salt": "another tenant"}) == {"refused": 1}
    assert client.tell(told, secret="not the secret").status_code == 401
    assert client.tell({**told, "room": "1"}).status_code == 400
    assert client.prefill.state()["trajectories"]["idle"] == 1
    assert outcome(told) == {"applied": 1}
    assert outcome(told) == {"unknown": 1}
    relay.start()


def test_without_the_channel_the_order_falls_back(client: PdClient, relay: Relay, rng: random.Random) -> None:
    (decode,) = client.cluster.decodes
    client.new_log(decode)
    relay.stop()
    heard = client.counter("hints.decode.applied")
    history = random_tokens(rng, 200)
    for _ in range(3):
        history = history + client.generate(history, "deaf", 3).output_ids + random_tokens(rng, 20)
    until(lambda: not client.channel()["up"])
    assert client.counter("hints.decode.applied") == heard
    assert client.new_log(decode).count("is not told of ended requests") == 1

    relay.start()

    until(lambda: client.channel()["up"] and not client.channel()["queued"])
    # Of the three, the trajectory still waits after the last one only.
    assert client.counter("hints.decode.applied") == heard + 1


def test_late_words_are_late(client: PdClient, relay: Relay, rng: random.Random) -> None:
    relay.delay_s = 5.0
    late, applied = client.counter("hints.decode.late"), client.counter("hints.decode.applied")
    history = random_tokens(rng, 150)
    first = client.generate(history, "hurried", 3)
    again = client.generate(history + first.output_ids + random_tokens(rng, 5), "hurried", 3)
    assert again.cached == len(history)
    until(lambda: client.counter("hints.decode.applied") > applied)
    assert client.counter("hints.decode.late") == late + 1


def test_a_client_that_leaves(client: PdClient, rng: random.Random) -> None:
    with client.router.streaming(random_tokens(rng, 300), None, 4_000) as stream:
        next(stream)
    client.heard()
    assert client.prefill.settled()["trajectories"]["active"] == 0


def test_a_decode_worker_that_dies_and_comes_back(
    servers: tuple[Cluster, PdClient], rng: random.Random
) -> None:
    _, client = servers
    client.flush()
    history = random_tokens(rng, 300)
    client.generate(history, "survivor", 2)
    client.heard()
    (decode,) = client.cluster.decodes
    failed: list[bool] = []

    def doomed() -> None:
        body = client.router.generate_body(random_tokens(rng, 100), None, 4_000)
        try:
            failed.append(not client.router.send("/generate", body).ok)
        except requests.RequestException:
            failed.append(True)

    victim = threading.Thread(target=doomed)
    victim.start()
    until(lambda: client.prefill.state()["trajectories"]["idle"] == 2)
    decode.kill()
    time.sleep(1.0)
    decode.start()
    decode.wait_healthy(START_S)

    def served() -> bool:
        body = client.router.generate_body([*history, *[7] * 10], None, 2)
        response = client.router.send("/generate", body)
        return response.ok and response.json()["meta_info"]["cached_tokens"] == len(history)

    until(served, 120)
    victim.join(180)
    # The router may have given the victim to the worker that came back.
    assert len(failed) == 1
    until(lambda: not client.prefill.state()["trajectories"]["active"])
    client.assert_clean()
