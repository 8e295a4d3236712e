"""The bound that `sglang_agentcache.scheduling.order` states, on random arrivals, with SGLang's cache and requests."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("sglang.srt.managers.schedule_batch")

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import Req

from sglang_agentcache.scheduling.prefix_aware import PrefixAwarePolicy
from tests.support.serving import Server

BATCH = 60
RESIDENT = [list(range(1000 * number, 1000 * number + 40)) for number in range(6)]


@pytest.fixture(scope="module")
def server() -> Server:
    server = Server("rust", 1, 4096, None)
    for number, tokens in enumerate(RESIDENT):
        server.serve(server.request(f"resident-{number}", tokens))
    return server


arrivals = st.lists(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(-1, len(RESIDENT) - 1), st.integers(0, 1)), max_size=6
    ),
    min_size=1,
    max_size=25,
)


class Waiting:
    """What the bound is about, of one request."""

    def __init__(self, number: int, work: int, priority: int, came: int) -> None:
        self.number, self.work, self.priority, self.came = number, work, priority, came
        self.overtaken = 0


def run(
    server: Server, steps: list[list[tuple[int, int, int]]], patience: float, priorities: bool
) -> list[Waiting]:
    """Serve until nobody waits, whole requests up to a batch a step; returns them as they were served."""
    policy = PrefixAwarePolicy(
        server.cache, patience=patience, batch_tokens=BATCH, enable_priority_scheduling=priorities
    )
    queue: list[Req] = []
    known: dict[str, Waiting] = {}
    served: list[Waiting] = []
    processed = step = 0
    while step < len(steps) or queue:
        for work, resident, priority in steps[step] if step < len(steps) else []:
            number = len(known)
            prefix = RESIDENT[resident] if resident >= 0 else []
            req = server.request(f"r{number}", [*prefix, *(10_000 + 100 * number + i for i in range(work))])
            req.priority, req.arrival_processed_tokens = priority, processed
            known[req.rid] = Waiting(number, work, priority if priorities else 0, processed)
            queue.append(req)
        step += 1
        policy.calc_priority(queue, None, processed_tokens=processed)
        room, batch = BATCH, []
        for req in queue:
            work = known[req.rid].work
            if work > room:
                break
            room -= work
            batch.append(req)
        queue = [req for req in queue if req not in batch]
        processed += BATCH - room
        for chosen in (known[req.rid] for req in batch):
            served.append(chosen)
            for other in (known[req.rid] for req in queue):
                if other.number < chosen.number and other.priority == chosen.priority:
                    other.overtaken += chosen.work
    return served


@settings(deadline=None, max_examples=150)
@given(steps=arrivals, patience=st.sampled_from([0.0, 0.5, 1.0, 4.0]), priorities=st.booleans())
def test_nobody_is_overtaken_by_more_than_the_bound(server, steps, patience, priorities):
    served = run(server, steps, patience, priorities)
    assert len(served) == sum(map(len, steps))
    for waiting in served:
        assert waiting.overtaken <= patience * waiting.work + BATCH


@settings(deadline=None, max_examples=50)
@given(steps=arrivals)
def test_patience_zero_serves_in_the_order_of_arrival(server, steps):
    assert [waiting.number for waiting in run(server, steps, 0.0, False)] == list(range(sum(map(len, steps))))


def test_without_ageing_the_bound_does_not_hold(server):
    steps = [[(50, -1, 0)], *[[(30, 0, 0), (30, 1, 0)] for _ in range(20)]]
    steps[0] += steps[1]
    greedy = run(server, steps, math.inf, False)
    assert greedy[-1].number == 0
    assert greedy[-1].overtaken > 4.0 * 50 + BATCH
    aged = next(waiting for waiting in run(server, steps, 4.0, False) if waiting.number == 0)
    assert 0 < aged.overtaken <= 4.0 * 50 + BATCH
