"""The door under any traffic: arrival order, a bounded wait, no deadlock, nothing left behind, all ranks alike."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sglang_agentcache.scheduling.admission import IDLE_S, PATIENCE_POOLS, Door
from sglang_agentcache.scheduling.returns import AWAY_S
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.model import PathNode
from sglang_agentcache.trajectory.table import TrajectoryTable
from tests.support.door import Sent

POOL = 1_000
SLOTS = 3
"""Requests that run at once."""


@dataclass
class Waiting:
    req: Sent
    ahead: int
    useful_tokens: int


class Traffic(RuleBasedStateMachine):
    """A scheduler that runs whoever is not at the door, in the order of arrival."""

    most_a_step = 100 * SLOTS + SLOTS * 5 * POOL
    """Useful tokens between two looks at the door."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = TrajectoryTable(None, 10_000, 1e9)
        self.door = Door(self.table, POOL, lambda: self.now)
        self.queue: list[Sent] = []
        self.running: list[Sent] = []
        self.at_the_door: dict[str, Waiting] = {}
        self.count = 0
        self.idle_since: float | None = None

    def _send(self, key: TrajectoryKey, tokens: int) -> None:
        self.count += 1
        req = Sent(f"r{self.count}", [0] * tokens)
        self.table.begin(key, req.rid, self.now, namespace=Namespace())
        before = self.door.waiting
        self.door.arrived(req)
        if self.door.waiting > before:
            self.at_the_door[req.rid] = Waiting(req, before, self.door.useful_tokens)
        self.queue.append(req)

    @rule(tokens=st.integers(1, 3 * POOL))
    def new(self, tokens: int) -> None:
        self._send(TrajectoryKey(Namespace(), f"t{self.count}"), tokens)

    @rule(data=st.data(), tokens=st.integers(1, 300))
    def back(self, data: st.DataObject, tokens: int) -> None:
        idle = [item for item in self.table.latest_idle() if item.branches]
        if idle:
            trajectory = data.draw(st.sampled_from(idle))
            self._send(trajectory.key, trajectory.branches[-1].history_tokens + tokens)
            assert self.queue[-1].rid not in self.at_the_door

    @rule(seconds=st.sampled_from([0.01, 1.0, 30.0, 100.0]), resident=st.floats(0, 1))
    def step(self, seconds: float, resident: float) -> None:
        idle = not self.running and len(self.queue) == len(self.at_the_door)
        if idle:
            self.door.forget_lost()
        entered = self.door.enter(idle=idle)
        # First come, first let in.
        waiting = list(self.at_the_door)
        assert [req.rid for req in entered] == waiting[: len(entered)]
        assert all(rid in self.door for rid in waiting[len(entered) :])
        # No deadlock: with nothing else to do, and nobody inside, somebody enters at once, and else in a while.
        if not idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = self.now
        if idle and waiting and not entered:
            assert self.now - self.idle_since < IDLE_S
            assert any(self.now - item.idle_since < AWAY_S for item in self.table.idle())
        for req in entered:
            came = self.at_the_door.pop(req.rid)
            waited = self.door.useful_tokens - came.useful_tokens
            assert waited <= (came.ahead + 1) * PATIENCE_POOLS * POOL + self.most_a_step * (came.ahead + 1)
        batch = [req for req in self.queue if req.rid not in self.door][: SLOTS - len(self.running)]
        self.queue = [req for req in self.queue if req not in batch]
        for req in batch:
            trajectory = self.table.of_request(req.rid)
            assert trajectory is not None
            history = trajectory.branches[-1].history_tokens if trajectory.branches else 0
            req.prefix_len, req.extend_end = int(history * resident), len(req.origin_input_ids)
        self.running += batch
        self.door.runs(batch, decoding=100 * len(self.running), idle=not self.running)
        self.now += seconds

    @rule(data=st.data(), completed=st.booleans())
    def finish(self, data: st.DataObject, completed: bool) -> None:
        if not self.running:
            return
        req = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        trajectory = self.table.of_request(req.rid)
        assert trajectory is not None
        length = len(req.origin_input_ids)
        self.table.extend(
            trajectory,
            req.rid,
            [PathNode(self.count, length)],
            prompt=req.origin_input_ids,
            history_tokens=length,
            tokens=array("q"),
            shared_with=lambda node: 0,
        )
        self._gone(req)
        if completed and not trajectory.requests:
            self.table.forget(trajectory)

    @rule(data=st.data(), told=st.booleans())
    def abort(self, data: st.DataObject, told: bool) -> None:
        """Of a waiting request, which the door may not be told of."""
        if not self.queue:
            return
        req = self.queue.pop(data.draw(st.integers(0, len(self.queue) - 1)))
        self.at_the_door.pop(req.rid, None)
        self._gone(req, told=told)
        assert not told or req.rid not in self.door
        # Those of whom nobody told are found out when the door is looked at.
        self.step(0.01, 1.0)

    def _gone(self, req: Sent, *, told: bool = True) -> None:
        self.table.end(req.rid, self.now)
        if told:
            self.door.left(req.rid)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not self.queue:
            assert self.door.waiting == 0

    def teardown(self) -> None:
        """Whatever happened, everybody gets in."""
        for _ in range(3 * len(self.queue) + 3):
            self.step(AWAY_S, 1.0)
            while self.running:
                self._gone(self.running.pop())
        assert not self.queue
        assert self.door.waiting == 0


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
