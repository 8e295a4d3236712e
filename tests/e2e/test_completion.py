"""Completion frees exactly what only the completed trajectory holds, measured in the pool."""

from __future__ import annotations

import random

import pytest

from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import LRU, PLUGIN, RR, RR_PAGE_16, TENSOR_PARALLEL, Running, on

SHARED, PRIVATE, OUTPUT = 500, 1_500, 6
BUSY_TOKENS = 1_500
"""An answer that is still being written when the client, on a machine with a lot to do, has sent its next request."""
EVERYWHERE = on(RR, RR_PAGE_16, LRU)


def two_agents(client: Client, rng: random.Random) -> dict[str, list[int]]:
    """Two idle agents over one shared prefix: their histories by id."""
    shared = random_tokens(rng, SHARED)
    histories = {}
    for name in ("one", "other"):
        prompt = shared + random_tokens(rng, PRIVATE)
        histories[name] = prompt + client.generate(prompt, name, OUTPUT).output_ids
    return histories


def private_tokens(server: Running, history: int) -> int:
    """Resident tokens beyond the shared prefix; the last token generated has no KV."""
    return server.whole_pages(history - 1) - server.whole_pages(SHARED)


@on(RR, RR_PAGE_16, LRU, PLUGIN, TENSOR_PARALLEL)
def test_the_endpoint_frees_the_private_tokens_and_nothing_of_a_sibling(
    server: Running, client: Client, rng: random.Random
) -> None:
    histories = two_agents(client, rng)
    free = client.free_tokens()
    private = private_tokens(server, len(histories["one"]))

    answer = client.complete("one")

    assert answer == {
        "trajectory_id": "one",
        "known": True,
        "released_tokens": private,
        "deferred_tokens": 0,
    }
    assert client.free_tokens() - free == private
    sibling = client.generate(histories["other"] + random_tokens(rng, 8), "other")
    assert sibling.cached == server.whole_pages(len(histories["other"]) - 1)
    assert client.generate(histories["one"], "one").cached == server.whole_pages(SHARED)


@EVERYWHERE
def test_a_request_marked_final_releases_when_it_finishes(
    server: Running, client: Client, rng: random.Random
) -> None:
    histories = two_agents(client, rng)
    free = client.free_tokens()
    prompt = histories["one"] + random_tokens(rng, 300)

    last = client.generate(prompt, "one", OUTPUT, hints={"final": True})

    assert last.cached == server.whole_pages(len(histories["one"]) - 1)
    assert client.free_tokens() - free == private_tokens(server, len(histories["one"]))
    assert client.settled()["trajectories"]["idle"] == 1
    assert client.complete("one")["known"] is False


@EVERYWHERE
def test_close_session_releases_the_trajectory_of_that_session_id(
    server: Running, client: Client, rng: random.Random
) -> None:
    prompt = random_tokens(rng, 900)
    kept = client.generate(random_tokens(rng, 700), session_id="kept")
    free = client.free_tokens()
    client.generate(prompt, session_id="closed")

    client.post("/close_session", {"session_id": "closed"})

    assert kept.cached == 0
    assert client.free_tokens() == free
    assert client.settled()["trajectories"]["idle"] == 1


@on(RR)
def test_dynamos_final_header_releases(server: Running, client: Client, rng: random.Random) -> None:
    free = client.free_tokens()
    headers = {"X-Dynamo-Session-ID": "dynamo", "X-Dynamo-Session-Final": "true"}
    client.generate(random_tokens(rng, 400), headers=headers)
    assert client.free_tokens() == free
    assert client.settled()["trajectories"] == {"active": 0, "idle": 0, "completed": 0}


@on(RR)
def test_after_a_tail_cut_only_what_is_left_is_freed(
    server: Running, client: Client, rng: random.Random
) -> None:
    histories = two_agents(client, rng)
    size = server.config.pool_tokens - client.free_tokens()
    # One token more than is free: the round's first agent gives a chunk.
    client.generate(random_tokens(rng, server.config.pool_tokens - size), "big", 2, hints={"final": True})
    free = client.free_tokens()
    answer = client.complete("one")
    assert answer["released_tokens"] == private_tokens(server, len(histories["one"])) - server.chunk
    assert client.free_tokens() - free == answer["released_tokens"]
    assert client.generate(histories["other"], "other").cached == len(histories["other"]) - 1


@EVERYWHERE
def test_while_a_request_runs_completion_is_deferred(
    server: Running, client: Client, rng: random.Random
) -> None:
    first = random_tokens(rng, 800)
    history = first + client.generate(first, "busy").output_ids
    free = client.free_tokens()
    with client.streaming(history + random_tokens(rng, 100), "busy", BUSY_TOKENS) as stream:
        next(stream)
        answer = client.complete("busy")
        assert answer["known"] is True
        assert answer["released_tokens"] == 0
        assert answer["deferred_tokens"] == server.whole_pages(len(history) - 1)
        assert client.complete("busy")["known"] is False
        events = list(stream)
    assert events[-1]["meta_info"]["completion_tokens"] == BUSY_TOKENS
    assert client.free_tokens() == free + server.whole_pages(len(history) - 1)
    assert client.settled()["trajectories"]["idle"] == 0


@EVERYWHERE
def test_a_late_request_begins_a_new_generation(server: Running, client: Client, rng: random.Random) -> None:
    prompt = random_tokens(rng, 640)
    with client.streaming(prompt, "again", BUSY_TOKENS) as stream:
        next(stream)
        client.complete("again")
        client.generate(prompt + random_tokens(rng, 64), "again")
        list(stream)
    assert client.settled()["trajectories"]["idle"] == 1
    # The end of the first generation has taken nothing from the second.
    reply = client.generate(prompt + random_tokens(rng, 64), "again")
    assert reply.cached >= 640
    free = client.free_tokens()
    assert client.complete("again")["released_tokens"] == client.free_tokens() - free > 0
    assert client.free_tokens() == server.config.pool_tokens


@EVERYWHERE
def test_unknown_ids_are_harmless(server: Running, client: Client, rng: random.Random) -> None:
    client.generate(random_tokens(rng, 100), "known")
    free = client.free_tokens()
    answer = client.complete("never seen")
    assert answer["known"] is False
    assert answer["released_tokens"] == answer["deferred_tokens"] == 0
    assert client.complete("known", cache_salt="another tenant")["known"] is False
    assert client.free_tokens() == free


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "trajectory_id"),
        ({"trajectory_id": 7}, "trajectory_id"),
        ({"trajectory_id": "x", "salt": "y"}, "salt"),
        ({"trajectory_id": "x", "cache_salt": 1}, "cache_salt"),
        (["x"], "body"),
    ],
)
@on(RR)
def test_malformed_completions_are_refused(server: Running, client: Client, body: object, field: str) -> None:
    response = client.send("/agentcache/complete", body)
    assert response.status_code == 400
    assert field in response.json()["message"]


@on(PLUGIN)
def test_the_endpoint_obeys_the_api_key(server: Running, client: Client) -> None:
    stranger = Client(client.url)
    assert stranger.send("/agentcache/complete", {"trajectory_id": "x"}).status_code == 401
    assert client.complete("x")["known"] is False
