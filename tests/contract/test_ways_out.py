"""Every way a request can leave, and what its trajectory owns afterwards."""

from __future__ import annotations

import pytest

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.table import State
from tests.support.serving import CORES, Server

SYSTEM = list(range(1000, 1032))


@pytest.fixture(params=CORES)
def server(request: pytest.FixtureRequest) -> Server:
    return Server(request.param, 1, 2048, AgentCacheConfig("rr", chunk_tokens=64))


def private(number: int, length: int = 100) -> list[int]:
    return [2000 + 1000 * number + i for i in range(length)]


def key(name: str) -> TrajectoryKey:
    return TrajectoryKey(Namespace(), name)


def turn(server: Server, name: str, tokens: list[int], rid: str = "", **hints: bool) -> list[int]:
    """One finished request; returns the history it leaves in the tree."""
    request = server.request(
        rid or f"{name}-{len(tokens)}", tokens, trajectory=name, output_tokens=2, **hints
    )
    server.serve(request, (7, 8))
    return [*tokens, 7]


def half_prefilled(server: Server, rid: str, tokens: list[int], **hints: object):
    """A request with one chunk in the tree and one on its way."""
    request = server.request(rid, tokens, **hints)  # type: ignore[arg-type]
    server.arrive(request)
    assert server.admit(request, 64)
    assert server.next_chunk(request, 32)
    return request


def test_aborted_between_chunks_its_published_chunks_stay_the_trajectorys(server: Server) -> None:
    history = turn(server, "a", SYSTEM + private(1))
    request = half_prefilled(server, "a2", history + private(2, 200), trajectory="a")
    server.abort_prefilling(request)
    trajectory = server.cache.table.get(key("a"))
    assert trajectory.state is State.IDLE
    assert trajectory.resident_tokens == len(history) + 64
    assert server.evict(10) == 64
    assert server.cache.stats["tail_tokens"] == 64, "the chunk was cut as this trajectory's tail"
    assert server.resident(history) == len(history)
    server.check_pool()


def test_aborted_between_chunks_with_nothing_resident_before_is_evictable_by_policy(server: Server) -> None:
    request = half_prefilled(server, "a1", SYSTEM + private(1, 200), trajectory="a")
    server.abort_prefilling(request)
    assert server.evict(10) == 64
    assert server.cache.stats["tail_tokens"] == 64
    assert server.cache.complete(key("a")).released_tokens == 0
    assert server.cache.total_size()[0] == 0


def test_aborted_between_chunks_after_final_leaves_nothing(server: Server) -> None:
    history = turn(server, "a", SYSTEM + private(1))
    other = turn(server, "b", SYSTEM + private(3))
    request = half_prefilled(server, "a2", history + private(2, 200), trajectory="a", final=True)
    server.abort_prefilling(request)
    assert server.cache.table.get(key("a")) is None
    assert server.resident(history) == len(SYSTEM)
    assert server.resident(other) == len(other)
    assert server.cache.total_size()[0] == len(other)
    server.check_pool()


def test_anonymous_request_aborted_between_chunks_leaves_no_trace_in_the_table(server: Server) -> None:
    request = half_prefilled(server, "a1", SYSTEM + private(1, 200))
    server.abort_prefilling(request)
    table = server.cache.table
    owned = {branch.trajectory.serial for branches in table._tails.values() for branch in branches}
    known = {trajectory.serial for trajectory in table._by_key.values()}
    assert owned <= known, "a tail of a trajectory that the table has forgotten"
    server.evict(10_000)
    assert server.cache.total_size()[0] == 0
    assert not table._tails and not table._prompts and not table._quiet and len(table) == 0


def test_aborted_while_queued_changes_nothing(server: Server) -> None:
    history = turn(server, "a", SYSTEM + private(1))
    request = server.request("a2", history + private(2), trajectory="a")
    server.arrive(request)
    assert server.cache.table.get(key("a")).state is State.ACTIVE
    server.abort_queued(request)
    assert server.cache.table.get(key("a")).state is State.IDLE
    assert server.resident(history) == len(history)
    assert len(server.cache.policy) == 1


def test_aborted_while_running_keeps_what_it_computed(server: Server) -> None:
    request = server.request("a1", SYSTEM + private(1), trajectory="a", output_tokens=10)
    server.arrive(request)
    assert server.admit(request)
    server.first_token(request, 5)
    assert server.decode(request, 6)
    server.abort_running(request)
    assert server.cache.table.get(key("a")).resident_tokens == len(SYSTEM) + 101
    server.check_pool()


def test_a_rejected_requests_stub_neither_supersedes_nor_shortens_its_trajectory(server: Server) -> None:
    history = turn(server, "a", SYSTEM + private(1))
    request = server.request("a2", history + private(2), trajectory="a")
    server.stub(request)
    server.arrive(request)
    assert server.admit(request)
    server.first_token(request, 1)
    trajectory = server.cache.table.get(key("a"))
    assert trajectory.state is State.IDLE and not server.cache.table.superseded
    assert trajectory.resident_tokens == len(history)
    assert server.resident(history) == len(history)


def test_a_stub_does_not_hide_what_an_evicted_trajectory_misses(server: Server) -> None:
    history = turn(server, "a", SYSTEM + private(1))
    server.evict(10_000)
    request = server.request("a2", history + private(2), trajectory="a")
    server.stub(request)
    server.arrive(request)
    assert server.admit(request)
    server.first_token(request, 1)
    trajectory = server.cache.table.get(key("a"))
    assert trajectory.missing_tokens >= len(history) - 1, "the high-water history length is kept"


def test_retracted_stays_active_and_is_not_evicted_by_choice(server: Server) -> None:
    idle = turn(server, "b", SYSTEM + private(2))
    request = half_prefilled(server, "a1", SYSTEM + private(1, 200), trajectory="a")
    published = server.cache.table
    server.retract(request)
    assert published.get(key("a")).state is State.ACTIVE
    assert server.evict(50) == 64
    assert server.resident(SYSTEM + private(1, 200)) == 96
    assert server.resident(idle) == len(idle) - 64
    assert server.admit(request)
    assert request.prefix_len == 96
    server.first_token(request, 9)
    server.check_pool()


def test_retracted_then_aborted_in_the_queue(server: Server) -> None:
    request = half_prefilled(server, "a1", SYSTEM + private(1, 200), trajectory="a")
    server.retract(request)
    server.abort_queued(request)
    assert server.cache.table.get(key("a")).state is State.IDLE
    assert server.evict(64) == 64
    assert server.cache.stats["tail_tokens"] == 64
    assert server.cache.total_size()[0] == 0


def test_two_ways_out_of_one_request_count_once(server: Server) -> None:
    request = server.request("a1", SYSTEM, trajectory="a", final=True)
    server.serve(request)
    server.cache.finish(request.cache_request_handle, 0)
    server.cache.request_left("a1")
    assert server.cache.stats["completed"] == 1
