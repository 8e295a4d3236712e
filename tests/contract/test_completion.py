"""Completion frees what only the completed trajectory owns: at once, or when it is unlocked."""

from __future__ import annotations

import pytest

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from tests.support.serving import CORES, PAGE_SIZES, Server

SYSTEM = list(range(1000, 1128))


@pytest.fixture(params=[(core, size) for core in CORES for size in PAGE_SIZES], ids=str)
def server(request: pytest.FixtureRequest) -> Server:
    core, page_size = request.param
    return Server(core, page_size, 8192, AgentCacheConfig("rr", chunk_tokens=256))


def private(number: int, length: int = 192) -> list[int]:
    return [2000 + 1000 * number + i for i in range(length)]


def key(name: str, space: Namespace | None = None) -> TrajectoryKey:
    return TrajectoryKey(space or Namespace(), name)


def total(server: Server) -> int:
    return int(server.cache.total_size()[0])


def test_exactly_the_private_tokens(server: Server) -> None:
    for number in range(3):
        server.serve(server.request(f"r{number}", SYSTEM + private(number), trajectory=f"t{number}"))
    available = server.allocator.available_size()
    released = server.cache.complete(key("t1"))
    assert released == (192, 0)
    assert server.allocator.available_size() - available == 192
    assert server.resident(SYSTEM + private(1)) == len(SYSTEM)
    for number in (0, 2):
        assert server.resident(SYSTEM + private(number)) == len(SYSTEM) + 192
    server.check_pool()


def test_the_last_one_takes_the_shared_prefix_along(server: Server) -> None:
    for number in range(3):
        server.serve(server.request(f"r{number}", SYSTEM + private(number), trajectory=f"t{number}"))
    assert [server.cache.complete(key(f"t{n}")).released_tokens for n in range(3)] == [192, 192, 320]
    assert total(server) == 0 and len(server.cache.table) == 0


def test_unknown_and_twice_completed_are_none(server: Server) -> None:
    assert server.cache.complete(key("nobody")) is None
    server.serve(server.request("r", SYSTEM, trajectory="a"))
    assert server.cache.complete(key("a", Namespace("lora", None))) is None
    assert server.cache.complete(key("a", Namespace(None, "salt"))) is None
    assert server.resident(SYSTEM) == len(SYSTEM)
    assert server.cache.complete(key("a")).released_tokens == len(SYSTEM)
    assert server.cache.complete(key("a")) is None


def test_while_a_request_runs_it_waits_for_its_end(server: Server) -> None:
    server.serve(server.request("r1", SYSTEM + private(0), trajectory="a"))
    request = server.request("r2", SYSTEM + private(0) + private(1), trajectory="a", output_tokens=2)
    server.arrive(request)
    assert server.admit(request)
    released = server.cache.complete(key("a"))
    assert released.released_tokens == 0 and released.deferred_tokens > 0
    assert server.resident(SYSTEM + private(0)) == len(SYSTEM) + 192
    server.first_token(request, 1)
    assert server.decode(request, 2)
    assert total(server) == 0
    server.check_pool()


def test_a_late_request_is_a_new_generation_and_keeps_the_old_ones_prefix_only_if_it_uses_it(
    server: Server,
) -> None:
    server.serve(server.request("r1", SYSTEM + private(0), trajectory="a"))
    old = server.request("r2", SYSTEM + private(0) + private(1), trajectory="a")
    server.arrive(old)
    assert server.admit(old)
    server.cache.complete(key("a"))
    late = server.request("r3", SYSTEM + private(5), trajectory="a")
    server.arrive(late)
    assert server.cache.table.of_request("r3") is not server.cache.table.of_request("r2")
    server.first_token(old, 1)
    assert server.resident(SYSTEM + private(0)) == 0
    assert server.admit(late) and late.prefix_len == 0
    server.first_token(late, 1)
    assert server.cache.complete(key("a")).released_tokens == len(SYSTEM) + 192


def test_a_tail_locked_by_a_fork_goes_when_the_fork_is_aborted(server: Server) -> None:
    """The fork waits right at the completed trajectory's tail and leaves without having added anything."""
    history = SYSTEM + private(0)
    server.serve(server.request("r1", history, trajectory="a"))
    fork = server.request("r2", history + private(1))
    server.arrive(fork)
    server.match(fork)
    lock = server.cache.lock(fork.last_node)
    released = server.cache.complete(key("a"))
    assert released.released_tokens == 0 and released.deferred_tokens > 0
    assert server.resident(history) == len(history)
    server.evict(100_000)
    assert server.resident(history) == len(history), "locked: neither released nor evicted"
    server.cache.unlock(lock)
    server.abort_queued(fork)
    assert total(server) == 0 and not server.cache._deferred
    server.check_pool()


def test_a_tail_locked_by_a_fork_that_finishes_belongs_to_the_fork(server: Server) -> None:
    history = SYSTEM + private(0)
    server.serve(server.request("r1", history, trajectory="a"))
    fork = server.request("r2", history + private(1), trajectory="b", output_tokens=2)
    server.arrive(fork)
    assert server.admit(fork)
    server.cache.complete(key("a"))
    server.first_token(fork, 1)
    assert server.decode(fork, 2)
    assert server.resident(history + private(1)) == len(history) + 192
    assert not server.cache._deferred
    everything = total(server)
    assert server.cache.complete(key("b")).released_tokens == everything > len(history)
    assert total(server) == 0


def test_children_end_and_their_parent_keeps_its_prompt(server: Server) -> None:
    parent = SYSTEM + private(0)
    server.serve(server.request("p", parent, trajectory="parent"))
    for number in range(1, 4):
        request = server.request(
            f"c{number}", parent + private(number), trajectory=f"child{number}", parent="parent", final=True
        )
        server.serve(request)
    assert server.resident(parent) == len(parent) == total(server)
    assert server.cache.stats["released_tokens"] == 3 * 192


def test_final_frees_at_the_end_of_its_request(server: Server) -> None:
    server.serve(
        server.request("r", SYSTEM + private(0), trajectory="a", final=True, output_tokens=3), (1, 2, 3)
    )
    assert total(server) == 0
    assert server.cache.table.get(key("a")) is None


def test_what_was_superseded_goes_too(server: Server) -> None:
    server.serve(server.request("r1", SYSTEM + private(0), trajectory="a"))
    server.serve(server.request("r2", SYSTEM + private(1), trajectory="a"))
    assert server.cache.table.superseded
    assert server.cache.complete(key("a")).released_tokens == len(SYSTEM) + 2 * 192
    assert total(server) == 0 and not server.cache.table.superseded


def test_a_superseded_branch_that_is_locked_is_not_forgotten(server: Server) -> None:
    server.serve(server.request("r1", SYSTEM + private(0), trajectory="a"))
    reader = server.request("x", SYSTEM + private(0) + [1])
    server.arrive(reader)
    server.match(reader)
    lock = server.cache.lock(reader.last_node)
    server.serve(server.request("r2", SYSTEM + private(1), trajectory="a"))
    server.evict(100_000)
    server.cache.unlock(lock)
    server.abort_queued(reader)
    server.cache.complete(key("a"))
    assert total(server) == 0


def test_inside_an_open_group_of_frees(server: Server) -> None:
    """`process_batch_result` holds the allocator's frees back; ours must join them, not nest."""
    server.serve(server.request("r1", SYSTEM + private(0), trajectory="a"))
    request = server.request("r2", SYSTEM + private(0) + private(1), trajectory="a", final=True)
    server.arrive(request)
    assert server.admit(request)
    server.allocator.free_group_begin()
    server.first_token(request, 1)
    assert total(server) == 0
    server.allocator.free_group_end()
    assert server.allocator.available_size() == server.capacity
    server.check_pool()


def test_with_sglangs_own_policy_too() -> None:
    server = Server("rust", 16, 4096, AgentCacheConfig(policy="lru"))
    for number in range(3):
        server.serve(server.request(f"r{number}", SYSTEM + private(number), trajectory=f"t{number}"))
    assert server.cache.complete(key("t1")).released_tokens == 192
    assert server.resident(SYSTEM + private(0)) == len(SYSTEM) + 192
