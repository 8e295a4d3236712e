"""What the cache holds never changes what the model says (temperature 0, float32)."""

from __future__ import annotations

import random

from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import (
    PLUGIN,
    RR,
    RR_PAGE_16,
    TENSOR_PARALLEL,
    WRITE_BACK,
    WRITE_THROUGH,
    Running,
    on,
)

AGENTS, SHARED, PRIVATE, OUTPUT = 6, 300, 1_700, 24


@on(RR, RR_PAGE_16, PLUGIN, WRITE_THROUGH, WRITE_BACK, TENSOR_PARALLEL)
def test_outputs_are_the_same_cold_with_hits_and_after_partial_eviction(
    server: Running, client: Client, rng: random.Random
) -> None:
    shared = random_tokens(rng, SHARED)
    first_turns = [shared + random_tokens(rng, PRIVATE) for _ in range(AGENTS)]
    continuations = [random_tokens(rng, 40) for _ in range(AGENTS)]

    def second_turn(agent: int) -> list[int]:
        return first_turns[agent] + said[agent] + continuations[agent]

    said, cold = [], []
    for agent in range(AGENTS):
        client.flush()
        said.append(client.generate(first_turns[agent], tokens=OUTPUT).output_ids)
    for agent in range(AGENTS):
        client.flush()
        reply = client.generate(second_turn(agent), tokens=OUTPUT)
        assert reply.cached == 0
        cold.append(reply.output_ids)
    # The model's answer depends on what it was asked, or equality would show nothing.
    assert len({tuple(output) for output in cold}) == AGENTS

    client.flush()
    for agent in range(AGENTS):
        assert client.generate(first_turns[agent], f"agent-{agent}", OUTPUT).output_ids == said[agent]
    for agent in range(AGENTS):
        reply = client.generate(second_turn(agent), f"agent-{agent}", OUTPUT)
        assert reply.cached >= server.whole_pages(SHARED + PRIVATE)
        assert reply.output_ids == cold[agent]

    trimmed = 0
    evicted = client.settled()["pool"]["evictable_tokens"]
    pressure = server.config.pool_tokens - evicted + AGENTS * PRIVATE // 2
    client.generate(random_tokens(rng, pressure), "newcomer", hints={"final": True})
    for agent in range(AGENTS):
        reply = client.generate(second_turn(agent), f"agent-{agent}", OUTPUT)
        trimmed += reply.cached < SHARED + PRIVATE
        assert reply.output_ids == cold[agent]
    if "hicache" not in server.config.name:
        assert trimmed >= AGENTS // 2
