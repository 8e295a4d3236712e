"""An idle trajectory with nothing private is passed over, and returns to the round when it has again."""

from __future__ import annotations

import pytest

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from tests.support.serving import CORES, Server

HISTORY = list(range(1, 201))


def key(name: str) -> TrajectoryKey:
    return TrajectoryKey(Namespace(), name)


@pytest.fixture(params=CORES)
def server(request: pytest.FixtureRequest) -> Server:
    server = Server(request.param, 1, 2048, AgentCacheConfig("rr", chunk_tokens=50))
    server.serve(server.request("parent-1", HISTORY, trajectory="parent"))
    return server


def pass_over_parent(server: Server) -> None:
    """Evict so much that the parent is visited and found to have nothing."""
    server.serve(server.request("other", range(5000, 5100), trajectory="other"))
    assert server.evict(50) == 50
    assert server.cache.table.get(key("parent")).parked
    assert server.resident(HISTORY) == len(HISTORY)


def assert_parent_gives_a_chunk(server: Server) -> None:
    before = server.cache.stats["tail_tokens"]
    assert server.evict(server.resident(range(5000, 5100)) + 1) >= 51
    assert server.resident(HISTORY) == len(HISTORY) - 50
    assert server.cache.stats["tail_tokens"] - before >= 51, "by the policy, not as unowned memory"


def test_when_a_lock_on_its_tail_is_dropped(server: Server) -> None:
    fork = server.request("fork-1", [*HISTORY, 900, 901], extra_key=None, trajectory="fork")
    server.arrive(fork)
    assert server.admit(fork)
    pass_over_parent(server)
    server.cache.unlock(fork.lock)
    fork.lock = None
    assert not server.cache.table.get(key("parent")).parked
    assert_parent_gives_a_chunk(server)


def test_when_the_child_above_it_completes(server: Server) -> None:
    server.serve(server.request("child-1", [*HISTORY, *range(900, 950)], trajectory="child"))
    server.arrive(server.request("child-2", [*HISTORY, *range(900, 960)], trajectory="child"))
    pass_over_parent(server)
    server.cache.request_left("child-2")
    assert server.cache.complete(key("child")).released_tokens == 50
    assert not server.cache.table.get(key("parent")).parked
    assert_parent_gives_a_chunk(server)


def test_when_memory_that_nobody_owns_goes_from_above_it(server: Server) -> None:
    server.serve(server.request("child-1", [*HISTORY, *range(900, 950)], trajectory="child"))
    server.cache.table.forget(server.cache.table.get(key("child")))
    assert server.evict(20) == 50, "the parent is no leaf; the unowned leaf goes whole, in SGLang's order"
    assert server.cache.stats["unowned_tokens"] == 50
    assert not server.cache.table.get(key("parent")).parked
    assert server.evict(20) == 50
    assert server.cache.stats["tail_tokens"] == 50


def test_when_the_other_trajectory_with_the_same_history_completes(server: Server) -> None:
    server.serve(server.request("twin-1", HISTORY, trajectory="twin"))
    pass_over_parent(server)
    assert server.cache.complete(key("twin")).released_tokens == 0
    assert_parent_gives_a_chunk(server)
