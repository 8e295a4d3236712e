"""However a request leaves, finished, aborted or retracted: nothing stays active and nothing leaks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests

from tests.support.e2e_client import Client, Reply, random_tokens
from tests.support.e2e_servers import PLUGIN, RR, RR_PAGE_16, SMALL, TENSOR_PARALLEL, Running, on

ENDLESS = 6_000


def wait_for_active(client: Client, count: int) -> None:
    deadline = time.monotonic() + 60
    while client.state()["trajectories"]["active"] != count:
        assert time.monotonic() < deadline, client.state()
        time.sleep(0.05)


@contextmanager
def pool_taken(server: Running, client: Client, rng: random.Random) -> Iterator[None]:
    """A long-running request holds most of the pool, so that the next large one has to wait in the queue."""
    with client.streaming(random_tokens(rng, 9_000), "holder", ENDLESS) as stream:
        next(stream)
        yield


@on(RR, RR_PAGE_16, PLUGIN, TENSOR_PARALLEL)
def test_a_client_that_disconnects_in_mid_stream(server: Running, client: Client, rng: random.Random) -> None:
    history = random_tokens(rng, 700)
    client.generate(history, "gone")
    with client.streaming(history + random_tokens(rng, 300), "gone", ENDLESS) as stream:
        next(stream)
    assert client.settled()["trajectories"] == {"active": 0, "idle": 1, "completed": 0}
    # It may come back at once, and what the aborted turn computed is a hit.
    assert client.generate(history, "gone").cached >= server.whole_pages(len(history) - 1)
    client.complete("gone")
    assert client.free_tokens() == server.config.pool_tokens


@on(RR, PLUGIN)
def test_an_aborted_request_that_was_final_releases_its_trajectory(
    server: Running, client: Client, rng: random.Random
) -> None:
    body = client.generate_body(random_tokens(rng, 600), "final", ENDLESS, {"final": True})
    with client.send("/generate", {**body, "rid": "r", "stream": True}, stream=True) as response:
        next(response.iter_lines())
        client.post("/abort_request", {"rid": "r"})
        list(response.iter_lines())
    assert client.settled()["trajectories"] == {"active": 0, "idle": 0, "completed": 0}
    assert client.free_tokens() == server.config.pool_tokens


@pytest.mark.parametrize("way", ["disconnect", "abort", "complete, then abort"])
@on(RR, TENSOR_PARALLEL)
def test_leaving_from_the_queue(server: Running, client: Client, rng: random.Random, way: str) -> None:
    history = random_tokens(rng, 2_000)
    client.generate(history, "queued")
    with pool_taken(server, client, rng):
        body = client.generate_body(
            history + random_tokens(rng, 6_000), "queued", 4_000, rid="waiting", stream=True
        )
        with client.send("/generate", body, stream=True) as response:
            wait_for_active(client, 2)
            # A queued trajectory is active: completing it is deferred.
            if way.startswith("complete"):
                assert client.complete("queued")["released_tokens"] == 0
            if way != "disconnect":
                client.post("/abort_request", {"rid": "waiting"})
                list(response.iter_lines())
        wait_for_active(client, 1)
    idle = client.settled()["trajectories"]["idle"]
    assert idle == (1 if way.startswith("complete") else 2)


@on(RR)
def test_a_client_that_does_not_stream_and_gives_up(
    server: Running, client: Client, rng: random.Random
) -> None:
    body = client.generate_body(random_tokens(rng, 500), "impatient", ENDLESS)
    with pytest.raises(requests.Timeout):
        client.send("/generate", body, timeout=1.0)
    assert client.settled()["trajectories"] == {"active": 0, "idle": 1, "completed": 0}


@on(RR)
def test_abort_all(server: Running, client: Client, rng: random.Random) -> None:
    bodies = [client.generate_body(random_tokens(rng, 1_500), f"agent-{i}", 3_000) for i in range(12)]
    threads = [threading.Thread(target=client.send, args=("/generate", body)) for body in bodies]
    for thread in threads:
        thread.start()
    wait_for_active(client, len(bodies))
    client.post("/abort_request", {"rid": "", "abort_all": True})
    for thread in threads:
        thread.join(60)
    assert client.settled()["trajectories"]["active"] == 0


@on(SMALL)
def test_retraction_under_memory_pressure_ends_clean(
    server: Running, client: Client, rng: random.Random
) -> None:
    """Eight long decodes in a pool for four, over two turns of each agent."""
    agents = range(8)
    histories = [random_tokens(rng, 60) for _ in agents]

    def turn(agent: int) -> Reply:
        return client.generate(histories[agent], f"agent-{agent}", 400, overcommit=True)

    retractions = 0
    for _ in range(2):
        with ThreadPoolExecutor(len(histories)) as pool:
            replies = list(pool.map(turn, agents))
        for agent, reply in enumerate(replies):
            assert len(reply.output_ids) == 400
            retractions += reply.meta["num_retractions"]
            histories[agent] = histories[agent] + reply.output_ids[:100] + random_tokens(rng, 20)
    assert retractions > 0
    assert "Retract requests" in server.log_text()
    assert client.settled()["trajectories"] == {"active": 0, "idle": len(histories), "completed": 0}
    for agent in agents:
        assert client.complete(f"agent-{agent}")["known"] is True
    assert client.free_tokens() == server.config.pool_tokens


@on(SMALL)
def test_disconnects_and_completions_while_requests_are_retracted(
    server: Running, client: Client, rng: random.Random
) -> None:
    """Whether a round has a retraction depends on who leaves when: there are several."""

    def leave_early(agent: int) -> None:
        with client.streaming(prompts[agent], f"agent-{agent}", 450, overcommit=True) as stream:
            for count, _event in enumerate(stream):
                if count == 100 and agent % 2:
                    client.complete(f"agent-{agent}")
                if count > 330 + 10 * agent:
                    return

    before = server.log_text().count("Retract requests")
    for _ in range(24):
        prompts = [random_tokens(rng, 60) for _ in range(8)]
        with ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(leave_early, range(len(prompts))))
        assert client.settled()["trajectories"] == {"active": 0, "idle": 4, "completed": 0}
        if server.log_text().count("Retract requests") > before:
            return
    pytest.fail("no request was ever retracted")
