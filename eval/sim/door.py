"""The simulated worker with this package's door (`--agentcache-admission auto`), as `AgentScheduler` uses it."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_batch import Req

from eval.sim.scheduler import Step, Worker
from eval.sim.schedules import Schedule
from sglang_agentcache.scheduling.admission import Door
from sglang_agentcache.scheduling.overcommit import Overcommit, bearable


class GuardedWorker(Worker):
    """Keeps requests at the door out of the queue while a step is planned.

    Args: as `Worker`; the cache must be this package's, which knows trajectories.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        cache = self.world.agent_cache
        assert cache is not None
        schedule = Schedule.parse(self.settings.schedule).name
        overcommit = Overcommit(bearable(schedule))
        self.door = Door(cache.table, self.world.capacity_tokens, cache.clock.now, overcommit)

    def enqueue(self, req: Req, now: float) -> None:
        super().enqueue(req, now)
        self.door.arrived(req)

    @property
    def asks_again(self) -> bool:
        """Nothing runs, and all who wait are at the door, which opens when enough time has passed."""
        return self.step is None and 0 < len(self.waiting) == self.door.waiting

    def begin(self, now: float, horizon: float) -> float | None:
        duration = super().begin(now, horizon)
        if self.step is None:
            self.door.runs((), decoding=0, idle=True)
        return duration

    def _prefill(self) -> Step | None:
        idle = not self.running.reqs and self._chunked is None and len(self.waiting) == self.door.waiting
        for req in self.door.enter(idle=idle):
            req.arrival_processed_tokens = self._processed_tokens
        outside = [req for req in self.waiting if req.rid in self.door]
        if outside:
            self.waiting = [req for req in self.waiting if req.rid not in self.door]
        step = super()._prefill()
        self.waiting.extend(outside)
        if step is not None:
            self.door.runs(step.reqs, decoding=0, idle=False)
        return step

    def _decode(self, now: float, horizon: float) -> Step | None:
        step = super()._decode(now, horizon)
        if step is not None:
            self.door.runs((), decoding=step.tokens * len(step.reqs), idle=False)
        return step
