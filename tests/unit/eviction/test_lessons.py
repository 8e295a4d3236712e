"""Waits are noted as they begin and end, and prepared and learned in batches: only the time may differ."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from sglang_agentcache.eviction.convex import Convex
from sglang_agentcache.eviction.lessons import BATCH, Lesson, Lessons
from sglang_agentcache.eviction.ranked import RankedPolicy
from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.store import load_default
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait
from sglang_agentcache.serving.hints import Hints

from .test_ranked import Idle, bash, started

COMMANDS = ("ls", "sleep 60", "pytest -q tests", "npm run build", "cat a.txt")
CHOICES: tuple[Hints, ...] = (
    *(bash(command) for command in COMMANDS),
    Hints(tool_calls=()),
    Hints(),
    Hints(tool_calls=(ToolCall("Read", {"file_path": "a"}), ToolCall("made_up", "{"))),
    Hints(tool_calls=(ToolCall("Bash", {"command": "ls"}),), expected_idle_s=30.0),
)


class AtOnce(Convex):
    """Prepares when a wait begins and learns when it ends, as if each request had the time."""

    def join(self, trajectory: Any, now: float) -> None:
        super().join(trajectory, now)
        self._prepare()

    def leave(self, trajectory: Any) -> None:
        super().leave(trajectory)
        self._lessons.learn(self.predictor)

    def returned(self, trajectory: Any, idle_s: float) -> None:
        super().returned(trajectory, idle_s)
        self._lessons.learn(self.predictor)


def order(policy: RankedPolicy, now: float) -> list[int]:
    """The serials of all that are joined, first victim first, in an order made now."""
    policy.fresh_tokens = 0
    policy.begin_eviction(now)
    first = policy.victim(now)
    slots = policy._ranking._slots
    found = sorted(slots, key=lambda serial: (policy._ranking._scores[slots[serial]], serial))
    assert set(found) == set(policy._joined)
    assert found[:1] == ([] if first is None else [first.serial])
    return found


class Life:
    """Trajectories that come and go at random, told to several policies alike."""

    def __init__(self, seed: int, *policies: RankedPolicy) -> None:
        self.random = random.Random(seed)
        self.policies = policies
        self.idle: dict[int, list[Idle]] = {}
        self.away: dict[int, list[Idle]] = {}
        self.taught: dict[int, int] = {}
        self.now, self.count = 0.0, 0

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.2, 3.0))
        pick = self.random.random()
        if pick < 0.5 or len(self.idle) < 5:
            self.begin()
        elif pick < 0.95:
            self.end(closing=self.random.random() < 0.05)
        else:
            self.refine()

    def begin(self) -> None:
        if self.away and self.random.random() < 0.7:
            serial = self.random.choice(sorted(self.away))
            copies = self.away.pop(serial)
        else:
            serial, self.count = self.count, self.count + 1
            copies = [Idle(serial) for _ in self.policies]
        hints = self.random.choice(CHOICES)
        for policy, copy in zip(self.policies, copies, strict=True):
            copy.hints, copy.idle_since = hints, self.now
            policy.join(copy, self.now)
        self.idle[serial] = copies

    def end(self, closing: bool) -> None:
        serial = self.random.choice(sorted(self.idle))
        copies = self.idle.pop(serial)
        for policy, copy in zip(self.policies, copies, strict=True):
            copy.closing = closing
            policy.leave(copy)
            if not closing:
                policy.returned(copy, self.now - copy.idle_since)
        if not closing:
            self.away[serial] = copies

    def refine(self) -> None:
        serial = self.random.choice(sorted(self.idle))
        hints = self.random.choice(CHOICES)
        for policy, copy in zip(self.policies, self.idle[serial], strict=True):
            copy.hints = hints
            policy.refined(copy, self.now)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_order_and_the_knowledge_of_doing_all_at_once(seed: int) -> None:
    later, once = started(Convex(rebuild_interval=1)), started(AtOnce(rebuild_interval=1))
    life = Life(seed, later, once)
    moved = []
    for number in range(600):
        life.step()
        if number % 10 == 9:
            ours, theirs = order(later, life.now), order(once, life.now)
            assert sorted(ours) == sorted(theirs) == sorted(life.idle)
            # Others have taught the predictor between the two looks; that moves few, and not far.
            places = {serial: place for place, serial in enumerate(theirs)}
            moved.append(np.mean([abs(places[s] - place) for place, s in enumerate(ours)]) / len(ours))
    assert np.mean(moved) < 0.03
    order(later, life.now)
    assert later.forecasts == once.forecasts
    for mine, other in (*life.idle.values(), *life.away.values()):
        assert durations(mine) == pytest.approx(durations(other), abs=0.02)
    calls = [hints.tool_calls[0] for hints in CHOICES if hints.tool_calls]
    assert later.predictor.predict(calls) == pytest.approx(once.predictor.predict(calls), rel=0.05)


def durations(idle: Idle) -> list[float]:
    return [past.log_duration for past in idle.memo.history._waits]


def test_without_learning_in_between_the_order_is_the_same() -> None:
    later, once = started(Convex(rebuild_interval=1)), started(AtOnce(rebuild_interval=1))
    life = Life(5, later, once)
    for _ in range(150):
        life.begin()
        life.now += 0.3
    assert order(later, life.now) == order(once, life.now)
    assert len(order(later, life.now)) == 150


def test_an_order_knows_all_that_ended_before() -> None:
    """Sixty returns less than a batch: none of them may be missing from what an eviction sees."""
    policy = started(Convex())
    slow = Hints(tool_calls=(ToolCall("deploy_all", "{}"),))
    for serial in range(BATCH - 4):
        idle = Idle(serial, slow)
        policy.join(idle, 0.0)
        policy.leave(idle)
        policy.returned(idle, 300.0)
    policy.join(Idle(1000, bash("ls")), 0.0)
    policy.join(Idle(1001, slow), 0.0)
    assert order(policy, 0.1)[0] == 1001


def test_without_an_eviction_notes_stay_few() -> None:
    policy = started(Convex())
    away = [Idle(serial) for serial in range(300)]
    for _ in range(2):
        for idle in away:
            idle.hints = bash("ls")
            policy.join(idle, 0.0)
            assert len(policy._unprepared) < BATCH and len(policy._lessons) < BATCH
        for idle in away:
            policy.leave(idle)
            policy.returned(idle, 1.0)
            assert len(policy._lessons) < BATCH
    assert not len(policy._ranking) and not policy._unprepared


def test_a_parked_one_is_named_again_when_it_rejoins() -> None:
    policy = started(Convex())
    one = Idle(0, bash("ls"))
    policy.join(one, 0.0)
    policy.begin_eviction(1.0)
    assert policy.victim(1.0) is one
    policy.leave(one)
    assert policy.victim(1.0) is None
    policy.join(one, 0.0)
    assert policy.victim(1.0) is one and len(policy) == 1


def test_a_reload_in_between() -> None:
    policy = started(Convex())
    prepared, noted = Idle(0, bash("sleep 5")), Idle(1, bash("sleep 5"))
    policy.join(prepared, 0.0)
    order(policy, 0.0)
    policy.join(noted, 0.0)
    policy.predictor = other = DurationPredictor("cachewise")
    for idle in (prepared, noted):
        policy.leave(idle)
        policy.returned(idle, 5.0)
    policy.join(Idle(2, bash("ls")), 0.0)
    assert order(policy, 1.0) == [2]
    # What the other estimator had prepared is of no use to this one.
    assert len(other.model_.all_) == 1  # type: ignore[union-attr]
    assert policy.forecasts["failed"] == 0


class Stumbling(DurationPredictor):
    """Cannot prepare one tool's calls."""

    def prepare(self, call: object, history: Any = None) -> Any:
        if isinstance(call, Wait) and any(one.name == "bad" for one in call.calls):
            raise RuntimeError("no")
        return super().prepare(call, history)

    def prepare_many(self, calls: Any, histories: Any) -> Any:
        return [self.prepare(call, history) for call, history in zip(calls, histories, strict=True)]


def test_one_bad_wait_spoils_no_other() -> None:
    policy = started(Convex(rebuild_interval=1))
    stumbling = Stumbling()
    stumbling.model_ = load_default().model_
    policy.predictor = stumbling
    waiting = (bash("ls"), Hints(tool_calls=(ToolCall("bad", "{}"),)), bash("sleep 600"))
    idle = [Idle(serial, hints) for serial, hints in enumerate(waiting)]
    for one in idle:
        policy.join(one, 0.0)
    found = order(policy, 0.1)
    assert found.index(2) < found.index(0) and policy.forecasts["failed"] == 1
    for one in idle:
        policy.leave(one)
        policy.returned(one, 1.0)
    order(policy, 1.0)
    assert [len(one.memo.history) for one in idle] == [1, 0, 1]
    assert policy.forecasts["failed"] == 1, "a wait that could not be prepared teaches nothing"


class Recording:
    """Writes down with how much of its history each wait is looked at."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.observed: list[float] = []

    def prepare_many(self, calls: Any, histories: Any) -> list[Any]:
        self.batches.append([len(history) for history in histories])
        return list(calls)

    def observe(self, wait: Any, duration_s: float, *, history: SessionHistory, censored: bool) -> None:
        self.observed.append(duration_s)
        history._waits.append(wait)


def test_a_wait_is_looked_at_with_the_one_before_it_learned() -> None:
    recording: Any = Recording()
    one, two, three = SessionHistory(), SessionHistory(), SessionHistory()
    lessons = Lessons(lambda: pytest.fail("nothing fails here"))
    for number, history in enumerate((one, two, one, three, two, one)):
        lessons.note(Lesson(Wait(), None, history, float(number), False), recording)
    assert not recording.observed and len(lessons) == 6
    lessons.learn(recording)
    assert recording.batches == [[0, 0], [1, 0, 1], [2]]
    assert recording.observed == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] and not len(lessons)


def test_prepared_together_or_one_by_one() -> None:
    for estimator in ("stacked", "cachewise"):
        predictor = load_default() if estimator == "stacked" else DurationPredictor(estimator)
        waits = [Wait(hints.tool_calls or ()) for hints in CHOICES]
        histories: list[SessionHistory | None] = [None, *(SessionHistory() for _ in waits[1:])]
        together = predictor.prepare_many(waits, histories)
        for wait, history, prepared in zip(waits, histories, together, strict=True):
            alone = predictor.prepare(wait, history)
            assert prepared.log_median == pytest.approx(alone.log_median) and math.isfinite(alone.log_median)
            assert prepared.row == pytest.approx(alone.row)
    assert predictor.prepare_many([], []) == []
