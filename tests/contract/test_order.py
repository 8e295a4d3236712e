"""Who is evicted before whom, where it stops, and what is never touched."""

from __future__ import annotations

import os
import random

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from sglang_agentcache.cache import eviction
from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory.clock import Clock
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from tests.support.serving import CORES, Server

SYSTEM = list(range(1000, 1064))
CHUNK = 64
FINISHED = int(os.environ.get("AGENTCACHE_FINISHED_TRAJECTORIES", "6000"))


def build(
    core: str,
    page_size: int = 1,
    chunk: int = CHUNK,
    visit: str = "chunk",
    capacity: int = 8192,
    **more: object,
) -> Server:
    return Server(core, page_size, capacity, AgentCacheConfig("rr", chunk, visit), **more)  # type: ignore[arg-type]


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def private(number: int, length: int = 192) -> list[int]:
    return [2000 + 1000 * number + i for i in range(length)]


def idle(server: Server, count: int, length: int = 192) -> list[list[int]]:
    histories = [SYSTEM + private(number, length) for number in range(count)]
    for number, history in enumerate(histories):
        server.serve(server.request(f"r{number}", history, trajectory=f"t{number}"))
    return histories


def left(server: Server, histories: list[list[int]]) -> list[int]:
    return [server.resident(history) - len(SYSTEM) for history in histories]


def key(name: str) -> TrajectoryKey:
    return TrajectoryKey(Namespace(), name)


def test_in_turn_one_chunk_each(core: str) -> None:
    server = build(core)
    histories = idle(server, 3)
    for taken in range(1, 10):
        assert server.evict(1) == CHUNK
        assert left(server, histories) == [192 - CHUNK * ((taken + 2 - n) // 3) for n in range(3)]
    server.check_pool()


def test_stops_once_the_shortfall_is_met(core: str) -> None:
    server = build(core)
    histories = idle(server, 4)
    server.free_up(server.allocator.available_size() + CHUNK + 1)
    assert left(server, histories) == [128, 128, 192, 192]


@pytest.mark.parametrize("page_size", (16, 64))
def test_cuts_at_page_boundaries(core: str, page_size: int) -> None:
    server = build(core, page_size, chunk=100)
    histories = [SYSTEM + private(number, 200) for number in range(3)]
    for number, history in enumerate(histories):
        server.serve(server.request(f"r{number}", history, trajectory=f"t{number}"))
    whole = (264 // page_size) * page_size
    server.evict(1)
    cut = 100 // page_size * page_size
    assert [server.resident(history) for history in histories] == [whole - cut, whole, whole]
    server.check_pool()


def test_a_cut_at_another_trajectorys_prompt_boundary(core: str) -> None:
    """The tail of one is cut exactly where the other's prompt ends: the shared part stays."""
    server = build(core)
    prompt = SYSTEM + private(0, 128)
    server.serve(server.request("a", prompt, trajectory="a"))
    server.serve(server.request("b", prompt + private(1, 64), trajectory="b"))
    assert server.evict(1) == 64, "a has nothing private"
    assert server.resident(prompt) == len(prompt) == server.cache.total_size()[0]


def test_leaf_visits_take_one_leaf(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "AHEAD", 1024)
    server = build(core, visit="leaf", capacity=1024)
    history = SYSTEM + private(0, 30)
    for turn in range(3):
        server.serve(server.request(f"r{turn}", history, trajectory="a"))
        history = history + private(turn + 1, 10)
    other = SYSTEM + private(9)
    server.serve(server.request("o", other, trajectory="o"))
    assert server.evict(5) == 10
    assert server.evict(5) == CHUNK
    assert server.evict(5) == 10


def test_chunk_zero_takes_the_whole_private_history(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "AHEAD", 1024)
    server = build(core, chunk=0)
    histories = idle(server, 3)
    assert server.evict(1) == 192
    assert left(server, histories) == [0, 192, 192]


def test_short_tails_go_several_at_a_time(core: str) -> None:
    """At least a chunk, or a 16th of the pool where that is less."""
    server = build(core, capacity=640)
    histories = idle(server, 12, length=10)
    assert server.evict(1) == 40
    assert left(server, histories[:5]) == [0, 0, 0, 0, 10]
    assert server.evict(45) == 50, "what is asked for, if that is more"
    small = build(core, chunk=20)
    idle(small, 12, length=10)
    assert small.evict(1) == 20
    for wanted in (server, small):
        wanted.check_pool()


def test_what_is_left_of_an_order_is_enough_if_it_meets_the_shortfall(core: str) -> None:
    server = build(core)
    [history] = idle(server, 1, length=10)
    waiting = SYSTEM + private(7, 300)
    server.serve(server.request("w1", waiting, trajectory="w"))
    server.arrive(server.request("w2", [*waiting, 1], trajectory="w"))
    assert server.evict(1) == 10
    assert left(server, [history, waiting]) == [0, 300]


def test_that_active_ones_own_everything_is_believed_for_a_second(core: str) -> None:
    seconds = [100.0]
    server = build(core, clock=Clock(source=lambda: seconds[0]))
    waiting, unowned = SYSTEM + private(1, 300), SYSTEM + private(2)
    server.serve(server.request("w1", waiting, trajectory="w"))
    server.arrive(server.request("w2", [*waiting, 1], trajectory="w"))
    assert server.evict(1) == CHUNK
    server.serve(server.request("u", unowned, trajectory="u"))
    server.cache.table.forget(server.cache.table.get(key("u")))
    assert server.evict(1) == CHUNK
    assert left(server, [waiting, unowned]) == [300 - 2 * CHUNK, 192]
    assert server.evict(300 - 2 * CHUNK + 1) > 300 - 2 * CHUNK, "before anything fails, all is looked at"
    seconds[0] += 1.0
    server.serve(server.request("v", unowned, trajectory="v"))
    server.cache.table.forget(server.cache.table.get(key("v")))
    assert server.evict(1) == 192
    server.check_pool()


def test_superseded_first_then_idle_then_unowned_then_active_newest_first(core: str) -> None:
    server = build(core)
    dead, again = SYSTEM + private(1), SYSTEM + private(2)
    server.serve(server.request("a1", dead, trajectory="a"))
    server.serve(server.request("a2", again, trajectory="a"))
    unowned = SYSTEM + private(3)
    server.serve(server.request("u", unowned, trajectory="u"))
    server.cache.table.forget(server.cache.table.get(key("u")))
    older, newer = SYSTEM + private(4), SYSTEM + private(5)
    for name, history in (("older", older), ("newer", newer)):
        server.serve(server.request(f"{name}1", history, trajectory=name))
    for name, history in (("older", older), ("newer", newer)):
        server.arrive(server.request(f"{name}2", [*history, 1], trajectory=name))
    everyone = [dead, again, unowned, newer, older]
    order = []
    while server.cache.evictable_size() > len(SYSTEM):
        before = left(server, everyone)
        assert server.evict(1) > 0
        changed = [
            n for n, (was, now) in enumerate(zip(before, left(server, everyone), strict=True)) if was != now
        ]
        order += [n for n in changed if n not in order]
    assert order == [0, 1, 2, 3, 4]
    assert server.cache.stats["active_tokens"] == 2 * 192


def test_more_than_everything(core: str) -> None:
    server = build(core)
    histories = idle(server, 3)
    running = server.request("x", [*histories[0], 5], trajectory="t0")
    server.arrive(running)
    assert server.admit(running)
    assert server.evict(10**9) == 2 * 192
    assert left(server, histories) == [192, 0, 0]
    server.check_pool([running])
    server.first_token(running, 1)
    assert server.evict(10**9) > 0
    assert server.cache.total_size()[0] == 0
    assert server.evict(1) == 0
    assert server.allocator.available_size() == server.capacity


def test_a_shared_tail_of_two_idle_ones_goes_in_sglangs_order(core: str) -> None:
    server = build(core)
    twins, single = SYSTEM + private(0), SYSTEM + private(1)
    for name in ("a", "b"):
        server.serve(server.request(name, twins, trajectory=name))
    server.serve(server.request("c", single, trajectory="c"))
    for _ in range(3):
        server.evict(1)
    assert left(server, [twins, single]) == [192, 0]
    assert server.evict(192) == 192
    assert server.cache.stats["unowned_tokens"] == 192
    assert left(server, [twins]) == [0]


def test_the_allocators_own_word_stops_it(core: str) -> None:
    """`allocation_reclaim_satisfied`: the quota is more than it takes."""
    server = build(core)
    histories = idle(server, 4)
    target = server.allocator.available_size() + CHUNK + 1
    server.cache.evict_for_alloc(
        EvictParams(num_tokens=10**6),
        allocation_reclaim_satisfied=lambda: server.allocator.available_size() >= target,
    )
    assert left(server, histories) == [128, 128, 192, 192]
    server.check_pool()


def test_a_waiting_request_that_was_matched_survives_a_cut_of_its_node(core: str) -> None:
    """Matched, not locked, then the node is split and its suffix evicted: the next match sees what is left."""
    server = build(core)
    (history,) = idle(server, 1)
    request = server.request("x", [*history, 1, 2], trajectory="fork")
    server.arrive(request)
    assert server.match(request) == len(history)
    assert server.evict(1) == CHUNK
    assert server.admit(request)
    assert request.prefix_len == len(history) - CHUNK
    server.first_token(request, 1)
    server.check_pool()


def test_eviction_for_a_retraction_spares_the_retracted(core: str) -> None:
    server = build(core)
    histories = idle(server, 2)
    request = server.request("x", SYSTEM + private(7), trajectory="x", output_tokens=5)
    server.arrive(request)
    assert server.admit(request)
    server.first_token(request, 1)
    server.retract(request, server.allocator.available_size() + 100)
    assert server.resident(SYSTEM + private(7)) == len(SYSTEM) + 192
    assert sum(left(server, histories)) < 2 * 192


def test_a_superseded_branch_that_is_an_ancestor_of_a_live_one(core: str) -> None:
    """Rewritten further up: the live branch runs through what another has left."""
    server = build(core)
    base = SYSTEM + private(0)
    server.serve(server.request("a1", base, trajectory="a"))
    server.serve(server.request("b1", base + private(1), trajectory="b"))
    server.serve(server.request("a2", SYSTEM + private(2), trajectory="a"))
    assert server.evict(1) == CHUNK
    assert server.resident(base) == len(base), "b lives on it"
    assert server.cache.complete(key("b")).released_tokens > 0
    server.check_pool()


def test_a_superseded_branch_that_comes_back_is_live_again(core: str) -> None:
    server = build(core)
    one, two = SYSTEM + private(1), SYSTEM + private(2)
    server.serve(server.request("a1", one, trajectory="a"))
    server.serve(server.request("a2", two, trajectory="a"))
    assert server.cache.table.superseded
    server.serve(server.request("a3", [*one, 5, 6], trajectory="a"))
    assert not server.cache.table.superseded
    assert server.cache.table.get(key("a")).interleaves
    assert len(server.cache.table.get(key("a")).branches) == 2
    server.serve(server.request("a4", [*two, 5, 6], trajectory="a"))
    assert not server.cache.table.superseded, "it goes back and forth: neither is dead"


def test_parallel_requests_do_not_supersede_each_other(core: str) -> None:
    server = build(core)
    pair = [
        server.request(f"a{number}", SYSTEM + private(number), trajectory="a", output_tokens=2)
        for number in range(2)
    ]
    for request in pair:
        server.arrive(request)
    for request in pair:
        assert server.admit(request)
    for request in pair:
        server.first_token(request, 1)
    for request in pair:
        assert server.decode(request, 2)
    assert not server.cache.table.superseded
    assert len(server.cache.table.get(key("a")).branches) == 2
    assert server.cache.complete(key("a")).released_tokens > 2 * 192
    assert server.cache.total_size()[0] == 0


@pytest.mark.parametrize("page_size", (1, 16))
def test_bigram_keys(core: str, page_size: int) -> None:
    """EAGLE: a key of n units spans n + 1 tokens; cuts stay at page boundaries and hits stay right."""
    server = build(core, page_size, is_eagle=True)
    histories = [SYSTEM + private(number) for number in range(3)]
    for number, history in enumerate(histories):
        server.serve(server.request(f"r{number}", history, trajectory=f"t{number}"))
    whole = (len(histories[0]) - 1) // page_size * page_size
    assert [server.resident(history) for history in histories] == [whole] * 3
    assert server.evict(1) == CHUNK
    assert [server.resident(history) for history in histories] == [whole - CHUNK, whole, whole]
    assert server.cache.table.get(key("t0")).missing_tokens >= CHUNK
    again = server.request("again", [*histories[0], 1, 2, 3], trajectory="t0")
    server.serve(again)
    assert again.prefix_len == whole - CHUNK
    shared = (len(SYSTEM) - 1) // page_size * page_size
    assert server.cache.complete(key("t1")).released_tokens == whole - shared
    server.check_pool()
    for number in range(60):
        server.evict(number)
    server.evict(10**6)
    assert server.cache.total_size()[0] == 0


def test_memory_stays_flat_over_finished_trajectories() -> None:
    """Completed, forgotten, aborted and anonymous ones leave nothing in any table, whatever they began with."""
    seconds = [0.0]
    config = AgentCacheConfig("rr", 16, forget_after_s=100.0)
    server = Server("rust", 1, 2048, config, max_length=256, clock=Clock(source=lambda: seconds[0]))
    draw = random.Random(1)

    def sizes() -> dict[str, int]:
        cache, table, policy = server.cache, server.cache.table, server.cache.policy
        owners = (("table", table), ("tails", cache.tails))
        found = {
            f"{name}.{field}": len(value)
            for name, owner in owners
            for field, value in vars(owner).items()
            if hasattr(value, "__len__")
        }
        found |= {
            field: len(getattr(cache, field)) for field in ("_final_requests", "_in_flight", "_deferred")
        }
        found["branches"] = sum(map(len, table._tails.values()))
        found["policy"] = sum(map(len, policy._rounds)) + sum(map(len, policy._ages)) + len(policy._tier_of)
        return found

    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            seconds[0] += 1.0
            tokens = [5, 6, 7, *(draw.randrange(10_000) for _ in range(12))]
            name = None if number % 3 == 0 else f"t{number}"
            request = server.request(f"r{number}", tokens, trajectory=name, final=number % 3 == 1)
            server.arrive(request)
            if number % 7 == 0:
                server.abort_queued(request)
                continue
            assert server.admit(request)
            server.first_token(request, 1)
            if number % 6 == 2:
                server.cache.complete(key(f"t{number}"))

    run(0, FINISHED // 4)
    early = sizes()
    run(FINISHED // 4, FINISHED - FINISHED // 4)
    late = sizes()
    grown = {name: (early[name], late[name]) for name in late if late[name] > early[name] * 1.5 + 32}
    assert not grown
    assert late["table._by_key"] < 500
