"""With one of SGLang's own policies our cache evicts what stock SGLang evicts, span by span."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from sglang.srt.managers.schedule_batch import Req

from sglang_agentcache.config import AgentCacheConfig
from tests.support.serving import CORES, Server

OPERATIONS = 10_000
UNIT = {1: 1, 16: 4}
"""Lengths of histories and of the pool are in so many tokens."""


class Span(NamedTuple):
    """One evicted tree node: its offsets from the root, and the tokens of the whole path to it."""

    start: int
    end: int
    tokens: tuple[int, ...]


class Recorded:
    """A server that notes what leaves its tree."""

    def __init__(self, core: str, page_size: int, config: AgentCacheConfig | None, policy: str) -> None:
        self.server = Server(
            core, page_size, 300 * UNIT[page_size], config, max_length=8192, eviction_policy=policy
        )
        self.spans: list[Span] = []
        evict_leaf = self.server.cache._evict_device_leaf

        def noting(node_id: int, tracker: object) -> object:
            cache = self.server.cache
            step = cache.tree_core.collect_path_info([node_id])[0][-1]
            slots = cache.path_device_indices(node_id).tolist()
            tokens = tuple(self.server.contents[slot] for slot in slots)
            self.spans.append(Span(step.path_start, step.path_end, tokens))
            return evict_leaf(node_id, tracker)

        self.server.cache._evict_device_leaf = noting


class Workload:
    """The same random operations on both servers; every outcome must be the same."""

    def __init__(self, seed: int, page_size: int, servers: tuple[Recorded, Recorded]) -> None:
        self.random, self.unit, self.servers = random.Random(seed), UNIT[page_size], servers
        self.histories: list[list[int]] = [[]]
        self.queued: list[tuple[Req, Req]] = []
        self.running: list[tuple[Req, Req]] = []
        self.count = 0

    def both(self, do) -> object:
        """Do it to both and return what came of it."""
        results = [do(recorded, index) for index, recorded in enumerate(self.servers)]
        assert results[0] == results[1]
        return results[0]

    def operate(self) -> None:
        choice = self.random.random()
        if choice < 0.25 and len(self.queued) < 6:
            self.arrive()
        elif choice < 0.45 and self.queued and len(self.running) < 8:
            self.admit()
        elif choice < 0.90 and self.running:
            self.forward()
        elif choice < 0.93 and self.running:
            self.retract()
        elif choice < 0.95 and self.queued:
            pair = self.queued.pop(self.random.randrange(len(self.queued)))
            self.both(lambda recorded, index: recorded.server.abort_queued(pair[index]))
        else:
            tokens = self.random.randrange(1, 40 * self.unit)
            self.both(lambda recorded, index: recorded.server.evict(tokens))

    def arrive(self) -> None:
        history = self.random.choice(self.histories[-12:])
        cut = self.random.choice((len(history), self.random.randrange(len(history) + 1)))
        length = self.random.randrange(1, 25 * self.unit)
        tokens = history[:cut] + [self.random.randrange(5)] * self.unit
        tokens = (tokens + [self.random.randrange(1000) for _ in range(length)])[-100 * self.unit :]
        self.count += 1
        rid, name = f"r{self.count}", self.random.choice((None, f"t{self.count % 9}"))
        outputs, salt = self.random.randrange(1, 6), self.random.choice((None, None, None, "salt"))

        def queue(recorded: Recorded, index: int) -> Req:
            req = recorded.server.request(
                rid, tokens, trajectory=name, output_tokens=outputs, cache_salt=salt
            )
            recorded.server.arrive(req)
            return req

        self.queued.append((queue(self.servers[0], 0), queue(self.servers[1], 1)))

    def admit(self) -> None:
        pair = self.queued.pop(self.random.randrange(len(self.queued)))
        chunk = self.random.choice((None, self.random.randrange(1, 30 * self.unit)))

        def one(recorded: Recorded, index: int) -> tuple[bool, int]:
            return recorded.server.admit(pair[index], chunk), pair[index].prefix_len

        admitted, _ = self.both(one)
        (self.running if admitted else self.queued).append(pair)

    def forward(self) -> None:
        place = self.random.randrange(len(self.running))
        pair, token = self.running[place], self.random.randrange(1000)

        def one(recorded: Recorded, index: int) -> str:
            server, req = recorded.server, pair[index]
            if not server.prefilled(req):
                went = server.next_chunk(req, 10 * self.unit)
            elif not req.output_ids:
                server.first_token(req, token)
                return "finished" if req.finished() else "running"
            else:
                went = server.decode(req, token)
            if not went:
                return "no room"
            return "finished" if req.finished() else "running"

        outcome = self.both(one)
        if outcome == "finished":
            self.running.pop(place)
            self.histories.append(list(pair[0].origin_input_ids + pair[0].output_ids))
        elif outcome == "no room":
            self.retract(place)

    def retract(self, place: int | None = None) -> None:
        pair = self.running.pop(self.random.randrange(len(self.running)) if place is None else place)
        if not self.servers[0].server.prefilled(pair[0]):
            self.both(lambda recorded, index: recorded.server.abort_prefilling(pair[index]))
            return
        self.both(lambda recorded, index: recorded.server.retract(pair[index], 5 * self.unit))
        self.queued.append(pair)


@pytest.mark.parametrize("page_size", (1, 16))
@pytest.mark.parametrize("core", CORES)
def test_same_victims_as_stock(core: str, page_size: int) -> None:
    stock = Recorded(core, page_size, None, "lru")
    ours = Recorded(core, page_size, AgentCacheConfig(policy="lru"), "lru")
    workload = Workload(20 + page_size, page_size, (stock, ours))
    for _ in range(OPERATIONS):
        workload.operate()
        assert len(stock.spans) == len(ours.spans)
    assert stock.spans == ours.spans
    assert len(stock.spans) > 500
    assert ours.server.cache.stats["released_tokens"] == 0
    for recorded, index in ((stock, 0), (ours, 1)):
        recorded.server.check_pool([pair[index] for pair in workload.running])


@pytest.mark.parametrize("policy", ("lfu", "fifo", "mru", "slru"))
def test_same_victims_with_sglangs_other_policies(policy: str) -> None:
    stock = Recorded("rust", 1, None, policy)
    ours = Recorded("rust", 1, AgentCacheConfig(policy=policy), policy)
    workload = Workload(7, 1, (stock, ours))
    for _ in range(OPERATIONS // 10):
        workload.operate()
    assert stock.spans == ours.spans
    assert len(stock.spans) > 30
