"""With HiCache a cut tail goes to the host, and comes back from there."""

from __future__ import annotations

import random
import time

from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import WRITE_BACK, WRITE_THROUGH, Running, on

pytestmark = on(WRITE_THROUGH, WRITE_BACK)

AGENTS, PRIVATE = 6, 2_000


def test_what_is_cut_comes_back_from_the_host(server: Running, client: Client, rng: random.Random) -> None:
    histories = [random_tokens(rng, PRIVATE) for _ in range(AGENTS)]
    for agent, history in enumerate(histories):
        history += client.generate(history, f"agent-{agent}", 4).output_ids
    before = client.settled()["counters"].get("tail_tokens", 0)

    client.generate(random_tokens(rng, 8_000), "newcomer", hints={"final": True})

    cut = client.settled()["counters"]["tail_tokens"] - before
    assert cut >= 3_000
    from_host = 0
    for agent, history in enumerate(histories):
        reply = client.generate(history + random_tokens(rng, 10), f"agent-{agent}")
        assert reply.cached == len(history) - 1
        from_host += (reply.meta["cached_tokens_details"] or {}).get("host", 0)
    assert from_host >= cut * 0.9


def test_completion_gives_the_device_back(server: Running, client: Client, rng: random.Random) -> None:
    shared = random_tokens(rng, 400)
    for name in ("one", "other"):
        client.generate(shared + random_tokens(rng, 1_000), name, 2)
    free = client.free_tokens()
    answer = client.complete("one")
    assert answer["released_tokens"] == 1_001
    assert client.free_tokens() - free == 1_001


def test_a_final_request_gives_the_device_back_though_its_backup_was_under_way(
    server: Running, client: Client, rng: random.Random
) -> None:
    for turn in range(3):
        free = client.free_tokens()
        client.generate(random_tokens(rng, 3_000), f"final-{turn}", 2, hints={"final": True})
        deadline = time.monotonic() + 20
        while client.free_tokens() != free and time.monotonic() < deadline:
            time.sleep(0.2)
        assert client.free_tokens() == free


def test_many_agents_take_turns_under_pressure(server: Running, client: Client, rng: random.Random) -> None:
    histories = [random_tokens(rng, 1_500) for _ in range(14)]
    for turn in range(4):
        order = list(range(len(histories)))
        rng.shuffle(order)
        for agent in order:
            reply = client.generate(histories[agent], f"agent-{agent}", 4)
            histories[agent] = histories[agent] + reply.output_ids + random_tokens(rng, 150)
            if turn == 2 and agent % 3 == 0:
                client.complete(f"agent-{agent}")
    assert client.settled()["counters"]["tail_tokens"] > 0
