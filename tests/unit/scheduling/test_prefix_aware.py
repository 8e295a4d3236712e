"""The schedule policy on SGLang's real cache and requests."""

from __future__ import annotations

import gc
import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang.srt.managers.schedule_batch")

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import PrefillAdder, SchedulePolicy
from sglang.srt.runtime_context import get_context

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.scheduling import prefix_aware
from sglang_agentcache.scheduling.prefix_aware import (
    FRESH_PASSES,
    MATCHES_OF_MANY,
    PrefixAwarePolicy,
    SharingAdder,
)
from tests.support.serving import CORES, Server

STOCK, OURS = None, AgentCacheConfig("rr", 64)


class Queue:
    """A waiting queue as the scheduler keeps it, and the policy that orders it."""

    def __init__(self, server: Server, patience: float = math.inf, **options: Any) -> None:
        self.server = server
        options.setdefault("batch_tokens", 100_000)
        self.policy = PrefixAwarePolicy(server.cache, patience=patience, **options)
        self.waiting: list[Req] = []
        self.processed = 0

    def add(self, rid: str, tokens: list[int], priority: int | None = None, **options: Any) -> Req:
        req = self.server.request(rid, tokens, **options)
        req.priority = priority
        req.arrival_processed_tokens = self.processed
        req.time_stats.wait_queue_entry_time = float(len(self.waiting))
        self.waiting.append(req)
        return req

    def order(self) -> list[str]:
        self.policy.calc_priority(self.waiting, None, processed_tokens=self.processed)
        return [req.rid for req in self.waiting]

    def leave(self, *rids: str) -> None:
        """As the scheduler does it: a new list."""
        self.waiting = [req for req in self.waiting if req.rid not in rids]


def history(number: int, length: int = 64) -> list[int]:
    return [1000 * number + position for position in range(length)]


def cold(number: int, length: int) -> list[int]:
    return history(500 + number, length)


@pytest.fixture(params=[(core, config) for core in CORES for config in (STOCK, OURS)], ids=str)
def server(request) -> Server:
    """SGLang's own cache, and ours: the order needs neither."""
    core, config = request.param
    server = Server(core, 1, 4096, config)
    for number in range(8):
        server.serve(server.request(f"first-{number}", history(number)))
    return server


def test_fewest_new_tokens_first(server):
    queue = Queue(server)
    queue.add("cold", cold(0, 50))
    queue.add("warm", history(1) + [7] * 20)
    queue.add("warmer", history(2) + [7] * 10)
    queue.add("tie", history(3) + [7] * 20)
    assert queue.order() == ["warmer", "warm", "tie", "cold"]
    assert [req.num_matched_prefix_tokens for req in queue.waiting] == [64, 64, 64, 0]


def test_patience_zero_is_fcfs(server):
    queue = Queue(server, patience=0)
    rids = [queue.add(f"r{number}", cold(number, 90 - 10 * number)).rid for number in range(6)]
    assert queue.order() == rids


def test_a_cold_request_is_due_after_patience_times_its_work(server):
    queue = Queue(server, patience=2)
    queue.add("cold", cold(0, 50))
    queue.processed = 60
    queue.add("warm", history(1) + [7] * 10)
    assert queue.order() == ["warm", "cold"]
    queue.processed = 99
    queue.add("later", [*history(2), 7])
    assert queue.order() == ["warm", "cold", "later"]
    # "warm" was due at 80, "cold" at 100, and came first.
    queue.processed = 100
    assert queue.order() == ["cold", "warm", "later"]


@pytest.mark.parametrize("core", CORES)
def test_five_hundred_wait_and_few_are_matched_in_a_step(core, monkeypatch):
    server = Server(core, 1, 4096, STOCK, max_length=512)
    for number in range(8):
        server.serve(server.request(f"first-{number}", history(number)))
    queue = Queue(server, batch_tokens=20)
    matched: list[str] = []
    match = PrefixAwarePolicy._match
    monkeypatch.setattr(
        PrefixAwarePolicy, "_match", lambda policy, req: (matched.append(req.rid), match(policy, req))
    )
    for number in range(500):
        # Warm ones need 1 to 8 new tokens, cold ones 65 or more.
        warm = history(number % 8) + [9000 + number] * (1 + number % 8)
        queue.add(f"r{number}", warm if number % 2 else cold(number, 65 + number % 50))
    passes = 0
    while len(set(matched)) < 500:
        before = len(matched)
        queue.order()
        assert 0 < len(matched) - before <= MATCHES_OF_MANY + 1
        passes += 1
    assert passes <= 500 / MATCHES_OF_MANY + 1
    needed = [_new_tokens(req) for req in queue.waiting]
    assert needed == sorted(needed)
    # A queue at rest: one in turn, and now and then the head.
    before = len(matched)
    for _ in range(2 * FRESH_PASSES):
        queue.order()
    assert len(matched) - before <= 2 * FRESH_PASSES + 3 * 20


def test_lone_requests_are_not_remembered():
    server = Server("python", 1, 4096, STOCK, max_length=512)
    queue = Queue(server)
    for number in range(20):
        queue.add(f"r{number}", cold(number, 65))
        queue.order()
        queue.waiting.clear()
    assert len(queue.policy._unmatched) <= 1


def _new_tokens(req: Req) -> int:
    return max(1, len(req.origin_input_ids) - req.num_matched_prefix_tokens)


def test_greedy_is_sglangs_shortest_prefill_first(server):
    queue = Queue(server)
    for number in range(24):
        tokens = history(number % 8) if number % 3 else cold(number, 40)
        queue.add(f"r{number}", tokens + [7000 + number] * (number * 7 % 11 + 1))
    theirs = list(queue.waiting)
    SchedulePolicy("shortest-prefill-first", server.cache, False, False, False).calc_priority(theirs)
    assert queue.order() == [req.rid for req in theirs]


def test_what_was_evicted_meanwhile_is_noticed_before_it_is_served(server):
    queue = Queue(server)
    queue.add("warm", history(1) + [7] * 2)
    queue.add("cold", cold(0, 40))
    assert queue.order() == ["warm", "cold"]
    server.evict(4096)
    for _ in range(FRESH_PASSES):
        queue.order()
    assert queue.order() == ["cold", "warm"]


def test_one_of_those_with_the_same_cold_prefix_goes_first(server):
    queue = Queue(server)
    shared = cold(0, 40)
    queue.add("leader", [*shared, 1])
    queue.add("follower", [*shared, 2, 3])
    queue.add("another namespace", [*shared, 2, 3], extra_key="other")
    queue.add("longer", cold(1, 80))
    assert queue.order() == ["leader", "another namespace", "longer", "follower"]
    # The leader is prefilled: now the follower needs 2 new tokens.
    leader = queue.waiting[0]
    queue.leave("leader")
    server.serve(leader)
    assert queue.order() == ["follower", "another namespace", "longer"]


def test_a_follower_whose_leader_brought_nothing_is_not_lost(server):
    queue = Queue(server)
    for number in range(5):
        queue.add(f"r{number}", [*cold(0, 40), *[number] * (number + 1)])
    queue.add("x", cold(1, 60))
    for number in range(5):
        order = queue.order()
        assert order[:2] == [f"r{number}", "x"]
        assert len(order) == 6 - number
        queue.leave(f"r{number}")
    assert queue.order() == ["x"]


def test_a_due_follower_waits_for_nobody(server):
    queue = Queue(server, patience=1)
    queue.add("leader", [*cold(0, 40), 1])
    queue.add("follower", [*cold(0, 40), 2, 3])
    queue.add("longer", cold(1, 80))
    assert queue.order() == ["leader", "longer", "follower"]
    queue.processed = 42
    assert queue.order() == ["leader", "follower", "longer"]


@pytest.mark.parametrize("low_first", [False, True])
def test_priority_first(server, low_first):
    queue = Queue(
        server, patience=2, enable_priority_scheduling=True, schedule_low_priority_values_first=low_first
    )
    sign = -1 if low_first else 1
    queue.add("low, warm", [*history(1), 7], priority=0)
    queue.add("high, cold", cold(0, 90), priority=5 * sign)
    queue.add("high, warm", history(2) + [7] * 3, priority=5 * sign)
    queue.add("low, cold", cold(1, 40), priority=0)
    assert queue.order() == ["high, warm", "high, cold", "low, warm", "low, cold"]
    # Ageing never crosses priorities.
    queue.processed = 10_000
    assert queue.order() == ["high, cold", "high, warm", "low, warm", "low, cold"]


def test_a_retracted_request_comes_anew_with_its_output(server):
    queue = Queue(server, patience=2)
    first = queue.add("retracted", cold(0, 50), output_tokens=4)
    queue.add("other", cold(1, 52))
    assert queue.order() == ["retracted", "other"]
    queue.leave("retracted")
    assert server.admit(first)
    server.first_token(first, 5)
    queue.processed = 50
    assert queue.order() == ["other"]
    server.retract(first, free_tokens=4096)
    first.arrival_processed_tokens = queue.processed
    queue.waiting.append(first)
    # 51 tokens from 50 on: due at 152. The other one is due at 104.
    assert queue.order() == ["other", "retracted"]
    queue.processed = 103
    queue.add("third", cold(2, 26))
    assert queue.order() == ["other", "retracted", "third"]


def test_a_burst_that_leaves_unmatched_leaves_nothing_behind():
    queue = Queue(Server("rust", 1, 1024, OURS))
    for number in range(300):
        queue.add(f"r{number}", [*cold(0, 40), number])
    queue.order()
    gone = [weakref.ref(req) for req in queue.waiting]
    for req in queue.waiting:
        queue.policy.left(req)
    queue.waiting.clear()
    del req
    gc.collect()
    assert not any(ref() for ref in gone)


def test_an_ended_request_leaves_nothing_behind():
    queue = Queue(Server("rust", 1, 1024, OURS))
    for number in range(4):
        queue.add(f"r{number}", [*cold(0, 40), number])
    gone = queue.add("gone", cold(1, 20))
    queue.order()
    deferred = queue.waiting[-1]
    queue.leave("gone", deferred.rid)
    queue.policy.left(gone)
    queue.policy.left(deferred)
    left = [weakref.ref(gone), weakref.ref(deferred)]
    del gone, deferred
    gc.collect()
    assert [ref() for ref in left] == [None, None]
    assert len(queue.order()) == 3


def test_a_queue_that_another_part_of_the_scheduler_reorders(server):
    # An optimistic prefill of PD that yields goes back to the front.
    queue = Queue(server, patience=2)
    for number in range(4):
        queue.add(f"r{number}", cold(number, 40 + number))
    assert queue.order() == ["r0", "r1", "r2", "r3"]
    back = queue.waiting[0]
    queue.leave("r0")
    queue.processed = 10
    back.arrival_processed_tokens = 10
    assert queue.order() == ["r1", "r2", "r3"]
    queue.waiting.insert(0, back)
    # It is due at 90, the others at 82, 84 and 86.
    assert queue.order() == ["r1", "r2", "r3", "r0"]


def test_a_decode_worker_orders_by_arrival(server):
    queue = Queue(server)
    queue.add("cold", cold(0, 50))
    queue.add("warm", [*history(1), 7])
    with get_context().override_server_args(device="cpu", disaggregation_mode="decode"):
        assert queue.order() == ["cold", "warm"]


def test_without_a_prefix_cache(server):
    server.cache.disable = True
    with pytest.raises(ValueError, match="--schedule-policy prefix-aware needs the prefix cache"):
        PrefixAwarePolicy(server.cache, patience=1, batch_tokens=1)


def chunked(queue: Queue, length: int, done: int) -> Req:
    """A request whose prefill is under way."""
    req = queue.add("chunked", cold(99, length))
    queue.order()
    queue.leave("chunked")
    req.init_next_round_input(queue.server.cache)
    req.prefix_len = done
    return req


def test_a_prefill_under_way_makes_room_for_smaller_ones(server):
    queue = Queue(server)
    under_way = chunked(queue, 300, done=100)
    queue.add("small", history(1) + [7] * 10)
    queue.add("also small", history(2) + [7] * 30)
    queue.add("larger", cold(0, 250))
    queue.order()
    assert queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 128, 1) == 128 - 40
    assert queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 128, 16) == 128 - 48
    # It keeps a page of the batch, and what does not fit whole gets nothing.
    assert queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 40, 1) == 30
    assert queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 10, 1) is None
    # Nearly done, it is the smallest.
    under_way.prefix_len = 295
    assert queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 128, 1) is None


def test_room_that_is_not_taken_goes_to_the_prefill_under_way(server):
    """Where memory is short, a request that goes first and cannot be admitted must not slow that which holds it."""
    queue = Queue(server)
    under_way = chunked(queue, 300, done=100)
    queue.add("small", history(1) + [7] * 100)
    limits = []
    for _ in range(10):
        queue.order()
        limits.append(queue.policy.shortest_prefill_chunk_limit(under_way, queue.waiting, 128, 1))
    assert limits == [28, *[None] * 7, 28, None]


def test_room_that_nobody_took_is_not_left_again_in_the_next_batch(monkeypatch):
    """Whatever the policy says: SGLang's shortest-prefill-first would leave it at every step."""
    monkeypatch.setattr(
        PrefillAdder, "add_chunked_req", lambda adder, req: adder.can_run_list.append(req) or req
    )
    req = SimpleNamespace(prefix_len=0, extend_end=1, full_untruncated_fill_ids=[0] * 300)
    req.sampling_params = SimpleNamespace(max_new_tokens=1)
    limits = []
    for others in (0, 0, 2, 2, 0, 0):
        adder = object.__new__(SharingAdder)
        adder.page_size, adder.can_run_list, adder.chunked_req_limit = 1, [], 64
        adder.memory_budget = SimpleNamespace(current_offset=0, total_offset=0)
        adder.add_chunked_req(req)
        adder.can_run_list += [object()] * others
        limits.append(adder.chunked_req_limit)
    assert limits == [64, None, 64, 64, 64, None]


def test_a_prefill_under_way_that_is_due_makes_no_room(server):
    queue = Queue(server, patience=2)
    under_way = chunked(queue, 300, done=100)
    queue.processed = 399
    queue.add("small", history(1) + [7] * 10)
    queue.order()
    limit = queue.policy.shortest_prefill_chunk_limit
    assert limit(under_way, queue.waiting, 128, 1) is None
    under_way.prefix_len = 50
    assert limit(under_way, queue.waiting, 128, 1) == 118


def test_the_figures_of_the_load_report_are_kept(server):
    queue = Queue(server)
    queue.add("warm", [*history(1), 7])
    queue.add("cold", cold(0, 50))
    queue.order()
    assert queue.policy.waiting_queue_prefix_matched(queue.waiting)
    assert {req.rid: req.num_matched_prefix_tokens for req in queue.waiting} == {"warm": 64, "cold": 0}
    assert not queue.policy.waiting_queue_prefix_matched(queue.waiting * 65), (
        "read one by one at each prefill"
    )


def test_what_sglang_may_not_reuse_counts_as_new(server):
    queue = Queue(server)
    queue.add("logprobs", history(1) + [7] * 2).return_logprob = True
    queue.waiting[0].logprob_start_len = 10
    queue.add("embedded", history(2) + [7] * 3).positional_embed_overrides = object()
    queue.add("plain", history(3) + [7] * 20)
    assert queue.order() == ["plain", "logprobs", "embedded"]


def test_thresholds_are_sglangs():
    assert prefix_aware.IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD == 32
    assert prefix_aware.IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD == 32
