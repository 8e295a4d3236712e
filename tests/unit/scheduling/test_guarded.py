"""The scheduler's part of the door: what it holds is out of the queue while a batch is planned, and only then."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.scheduler import Scheduler

from sglang_agentcache.scheduling.guarded import GuardedScheduler
from tests.support.door import Sent


class ADoor:
    """Lets in so many as it is told to, first come first."""

    def __init__(self) -> None:
        self.held: dict[str, Sent] = {}
        self.opens_for = 0
        self.decoded = 0

    @property
    def waiting(self) -> int:
        return len(self.held)

    def __contains__(self, rid: str) -> bool:
        return rid in self.held

    def enter(self, *, idle: bool) -> list[Sent]:
        entered = list(self.held.values())[: self.opens_for]
        for req in entered:
            del self.held[req.rid]
        return entered

    def forget_lost(self) -> None: ...

    def decodes(self, tokens: int) -> None:
        self.decoded += tokens

    def runs(self, prefilled: object, *, decoding: int, idle: bool) -> None:
        self.decoded += decoding


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its queue, a door, and a plan that takes some of the queue; no server behind it."""
    made: Any = object.__new__(GuardedScheduler)
    made.door, made.waiting_queue, made.planned = ADoor(), [], []
    made.processed_tokens_counter, made.takes, made._outside = 0, 0, []
    made.chunked_req, made.enable_priority_preemption, made.is_hybrid_swa = None, False, False

    def plan(self: Any, _: object, running: Any) -> tuple[None, Any]:
        self.planned = list(self.waiting_queue)
        random.Random(len(self.planned)).shuffle(self.waiting_queue)
        del self.waiting_queue[: self.takes]
        return None, running

    monkeypatch.setattr(Scheduler, "_get_new_batch_prefill_raw", plan)
    return made


def running(full: bool = False) -> SimpleNamespace:
    return SimpleNamespace(reqs=[1, 2], is_empty=lambda: False, batch_is_full=full)


RUNNING = running()


def test_whatever_happens_to_the_queue_the_door_holds_the_right_ones(scheduler: Any) -> None:
    chance, count = random.Random(0), 0
    for _ in range(3_000):
        for _ in range(chance.choice((0, 0, 1, 3))):
            req = Sent(f"r{count}", [])
            count += 1
            scheduler.waiting_queue.append(req)
            if chance.random() < 0.7:
                scheduler.door.held[req.rid] = req
        if scheduler.waiting_queue and chance.random() < 0.2:
            gone = scheduler.waiting_queue.pop(chance.randrange(len(scheduler.waiting_queue)))
            if chance.random() < 0.5:
                scheduler.door.held.pop(gone.rid, None)
        scheduler.door.opens_for = chance.choice((0, 0, 0, 1, 4))
        scheduler.takes = chance.choice((0, 1, 2))
        before = list(scheduler.waiting_queue)
        scheduler._get_new_batch_prefill_raw(None, RUNNING)
        planned = {req.rid for req in scheduler.planned}
        assert planned == {req.rid for req in before if req.rid not in scheduler.door}
        left = [req.rid for req in scheduler.waiting_queue]
        assert len(left) == len(set(left)) == len(before) - min(scheduler.takes, len(planned))
    assert count > 1_000


def test_what_joins_while_a_batch_is_planned_waits_for_the_next(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Sent("late", [])

    def add(self: Any, req: Sent, is_retracted: bool = False) -> None:
        self.waiting_queue.append(req)

    def plan(self: Any, _: object, running: Any) -> tuple[None, Any]:
        self._add_request_to_queue(late)
        assert late not in self.waiting_queue
        return None, running

    monkeypatch.setattr(Scheduler, "_add_request_to_queue", add)
    monkeypatch.setattr(Scheduler, "_get_new_batch_prefill_raw", plan)
    scheduler.door.arrived = lambda req: None
    scheduler._get_new_batch_prefill_raw(None, RUNNING)
    assert scheduler.waiting_queue == [late]


@pytest.mark.parametrize("looks", ["chunked_req", "enable_priority_preemption", "is_hybrid_swa"])
def test_nobody_is_let_in_while_no_batch_could_take_anybody(scheduler: Any, looks: str) -> None:
    first, second = Sent("first", []), Sent("second", [])
    scheduler.waiting_queue, scheduler.door.held = [first, second], {"first": first}
    scheduler.door.opens_for = 1
    scheduler._get_new_batch_prefill_raw(None, running(full=True))
    assert "first" in scheduler.door and len(scheduler.waiting_queue) == 2
    assert scheduler.door.decoded == 2, "what it decodes counts"
    setattr(scheduler, looks, True)
    scheduler._get_new_batch_prefill_raw(None, running(full=True))
    assert "first" not in scheduler.door, "SGLang looks at the queue all the same"


def test_a_full_batch_that_has_run_out_takes_somebody(scheduler: Any) -> None:
    held = Sent("held", [])
    scheduler.waiting_queue, scheduler.door.held, scheduler.door.opens_for = [held], {"held": held}, 1
    scheduler.last_batch, scheduler._pp_microbatches_drained = None, lambda: True
    scheduler._get_new_batch_prefill_raw(
        None, SimpleNamespace(reqs=[], is_empty=lambda: True, batch_is_full=True)
    )
    assert "held" not in scheduler.door
