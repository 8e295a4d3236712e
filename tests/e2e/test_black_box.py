"""Nine idle agents, one large newcomer, and what is left of each when it comes back."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from eval.counters import Counters
from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import LRU, LRU_PAGE_16, PLUGIN, RR, RR_PAGE_16, Running, on

AGENTS, SHARED, PRIVATE, NEWCOMER = 9, 500, 1_500, 8_000
RETURNS = ("round", "reverse", "random", "all at once")


def returned_hits(server: Running, client: Client, rng: random.Random, order: str) -> list[tuple[int, int]]:
    """Play the scene; return (cached tokens, history length) of each agent's return."""
    shared = random_tokens(rng, SHARED)
    histories = []
    for agent in range(AGENTS):
        prompt = shared + random_tokens(rng, PRIVATE)
        histories.append(prompt + client.generate(prompt, f"agent-{agent}").output_ids)
    assert client.settled()["trajectories"]["idle"] == AGENTS

    before = Counters.read(client.url, server.config.api_key)
    free = client.free_tokens()
    newcomer = client.generate(random_tokens(rng, NEWCOMER), "newcomer", hints={"final": True})
    assert newcomer.cached == 0
    change = Counters.read(client.url, server.config.api_key) - before
    # About 5,600 tokens had to go (at most a chunk or a history more), and all 8,000 came back.
    evicted = change.evicted // server.config.ranks  # each rank counts its own
    assert NEWCOMER - free <= evicted <= NEWCOMER - free + PRIVATE
    assert change.released == server.whole_pages(NEWCOMER)
    assert client.free_tokens() == free + evicted

    agents = list(range(AGENTS))
    if order == "reverse":
        agents.reverse()
    elif order == "random":
        rng.shuffle(agents)
    turns = [(agent, histories[agent] + random_tokens(rng, 20)) for agent in agents]

    def come_back(turn: tuple[int, list[int]]) -> tuple[int, int]:
        agent, prompt = turn
        return client.generate(prompt, f"agent-{agent}").cached, len(histories[agent])

    if order == "all at once":
        with ThreadPoolExecutor(AGENTS) as pool:
            return list(pool.map(come_back, turns))
    return [come_back(turn) for turn in turns]


@pytest.mark.parametrize("order", RETURNS)
@on(RR, RR_PAGE_16)
def test_round_robin_leaves_every_agent_much_of_its_history(
    server: Running, client: Client, rng: random.Random, order: str
) -> None:
    for cached, history in returned_hits(server, client, rng, order):
        assert cached >= 0.4 * history
        assert cached >= server.whole_pages(SHARED)


@pytest.mark.parametrize("order", RETURNS)
@on(LRU, LRU_PAGE_16)
def test_lru_leaves_some_agents_nothing_but_the_shared_prefix(
    server: Running, client: Client, rng: random.Random, order: str
) -> None:
    hits = [cached for cached, _ in returned_hits(server, client, rng, order)]
    assert all(cached >= server.whole_pages(SHARED) for cached in hits)
    # Random histories may agree in a token or two beyond the shared prefix.
    assert sum(cached < SHARED + 16 for cached in hits) >= 3


@on(PLUGIN)
def test_whole_leaf_visits_on_the_python_core(server: Running, client: Client, rng: random.Random) -> None:
    """Here a visit takes at most 512 tokens of one leaf: more agents lose a little."""
    for cached, history in returned_hits(server, client, rng, "random"):
        assert cached >= 0.4 * history
