"""The leader's time on its way through SGLang's request stream (`Scheduler.ingest_requests`)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sglang.srt.managers.scheduler")

from sglang.srt.managers.scheduler import Scheduler

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.scheduling.scheduler import AgentScheduler
from sglang_agentcache.trajectory.clock import Clock, Tick
from tests.support.serving import Server


class Asleep(AgentScheduler):
    """A scheduler of which only what happens to arriving messages is real."""

    def __init__(self, source: Any) -> None:
        config = AgentCacheConfig.parse("rr", None, page_size=1)
        self.tree_cache = Server("python", 1, 1024, config, clock=Clock(shared=True, source=source)).cache
        self.agent_metrics = None


def test_requests_are_met_at_the_time_that_came_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[str, float]] = []

    def dispatch(scheduler: Any, messages: list[Any]) -> None:
        met.extend((message, scheduler.tree_cache.clock.now()) for message in messages)

    monkeypatch.setattr(Scheduler, "process_input_requests", dispatch)
    monkeypatch.setattr(Scheduler, "_poll_timeout_aborts", lambda scheduler: [])
    times = iter([100.0, 700.0])
    scheduler = Asleep(lambda: next(times))
    for request in ("before it slept", "what woke it"):
        # SGLang appends what the leader adds to what has arrived (SchedulerRequestReceiver).
        scheduler.process_input_requests([request, *scheduler._poll_timeout_aborts()])
    assert met == [("before it slept", 100.0), ("what woke it", 700.0)]


def test_sglang_still_appends_what_the_leader_adds() -> None:
    """The reason for reading ticks first; SGLang's own receiver on one rank."""
    from sglang.srt.managers.scheduler_components import request_receiver

    class Alone:
        attn_dp_enabled, tp_size = False, 1

    receiver = request_receiver.SchedulerRequestReceiver
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_receiver, "get_parallel", Alone)
        received = receiver._broadcast_reqs_across_ranks(None, ["request"], [Tick(1.0)])
    assert received == ["request", Tick(1.0)]
