"""What the cache does, on SGLang's own `GET /metrics` (`--enable-metrics`); docs/metrics.md lists it.

Each class measures one thing and is asked to catch up about once a second. Label sets are bounded: every value is
listed here or in the module that it comes from.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_agentcache.eviction.ranked import BASES, RankedPolicy

from .families import Families, Follower
from .hints import FIELDS
from .state import TRAJECTORY_SOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector

    from sglang_agentcache.cache.radix_cache import AgentRadixCache
    from sglang_agentcache.disagg.channel import Channel
    from sglang_agentcache.scheduling.admission import Door
    from sglang_agentcache.trajectory.model import Trajectory

REFRESH_S = 1.0
SHARE = 0.002
"""Of the scheduler's time, at most, goes into catching up: counting tokens looks at every idle trajectory."""

STATES = ("active", "idle", "completed")
"""A completed one is counted while its last request is still in flight; then it is gone."""

EVICTED = {
    "superseded": "superseded_tokens",
    "idle_tail": "tail_tokens",
    "unowned": "unowned_tokens",
    "active": "active_tokens",
    "last_resort": "last_resort_tokens",
}
"""Label `reason` and the counter of `AgentRadixCache.stats` behind it, in the order of an eviction."""

HINTS = {
    "request": FIELDS,
    "output": ("tool_calls", "no_call", "unreadable"),
    "decode": ("applied", "late", "unknown", "refused"),
}
"""Label `source`: outcomes. A request carries fields, an output is read for tool calls, and a decode worker tells
of an end (`disagg.rooms`). What a decode worker itself did is source "channel"."""

CHANNEL = ("sent", "dropped", "refused")

OTHER = "other"
"""What told a request's trajectory, if it is none of `TRAJECTORY_SOURCES`."""

HINTS_TEXT = "What was learned of trajectories, by where from and what became of it."

UNCACHED_BUCKETS = (
    0,
    64,
    128,
    256,
    512,
    *(1024 * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)),
)
"""Tokens: fine around one tail chunk, then up to a long history lost as a whole."""


class Part(Protocol):
    def update(self) -> None:
        """Bring every gauge and counter up to date."""


class Metrics:
    """All of one scheduler's metrics."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._next_refresh = 0.0

    def update(self) -> None:
        for part in self._parts:
            part.update()

    def refresh(self) -> None:
        """Called in every round of the scheduler; does something about once in `REFRESH_S`."""
        if time.monotonic() < self._next_refresh:
            return
        # This thread's own time: on a machine under load the other one says little of what it cost.
        began = time.thread_time()
        self.update()
        spent = time.thread_time() - began
        self._next_refresh = time.monotonic() + max(REFRESH_S, spent / SHARE)


class CacheMetrics:
    """Trajectories, tokens, hints, predictions; from here on the cache tells it of every request that finishes."""

    def __init__(self, families: Families, cache: AgentRadixCache) -> None:
        self.cache = cache
        self._states = {
            state: families.gauge("trajectories", "Number of trajectories.", state=state) for state in STATES
        }
        text = "Tokens of the histories of idle trajectories, on the device or not."
        self._resident = families.gauge("idle_tokens", text, where="resident")
        self._missing = families.gauge("idle_tokens", text, where="missing")
        self._uncached = {
            kind: families.histogram(
                "uncached_tokens", "Prompt tokens that a request had to prefill.", UNCACHED_BUCKETS, kind=kind
            )
            for kind in ("first", "continuation")
        }
        policy = cache.agent_config.policy
        counters = {
            "tail_chunks": families.counter("tail_chunks_total", "Tail chunks cut.", policy=policy),
            "released_tokens": families.counter(
                "released_tokens_total", "Device tokens freed by completion."
            ),
            "completed": families.counter("completions_total", "Trajectories said to be complete."),
        }
        for reason, key in EVICTED.items():
            counters[key] = families.counter(
                "evicted_tokens_total", "Device tokens evicted.", policy=policy, reason=reason
            )
        for source, outcomes in HINTS.items():
            for outcome in outcomes:
                counters[f"hints.{source}.{outcome}"] = families.counter(
                    "hints_total", HINTS_TEXT, source=source, outcome=outcome
                )
        self._stats = Follower(counters)
        told_by = {
            source: families.counter(
                "requests_total", "Requests, by what told their trajectory.", source=source
            )
            for source in (*TRAJECTORY_SOURCES, OTHER)
        }
        self._sources = Follower(told_by)
        self._policy = cache.policy if isinstance(cache.policy, RankedPolicy) else None
        if self._policy is not None:
            predictions = {
                basis: families.counter(
                    "predictions_total", "Idle times predicted, by what is known of the wait.", basis=basis
                )
                for basis in BASES
            }
            failed = families.counter(
                "prediction_fallbacks_total",
                "Trajectories ordered by idle time because the predictor failed.",
            )
            self._predictions = Follower({**predictions, "failed": failed})
        cache.on_finished = self.finished

    def finished(self, req: Req, trajectory: Trajectory) -> None:
        """A request has finished, still known to its trajectory."""
        if isinstance(req.finished_reason, FINISH_ABORT):
            return
        # The request that made the trajectory has its number.
        first = trajectory.requests.get(req.rid) == trajectory.serial
        uncached = max(0, len(req.origin_input_ids) - req.cached_tokens)
        self._uncached["first" if first else "continuation"].observe(uncached)

    def update(self) -> None:
        table, stats = self.cache.table, self.cache.stats
        active = table.active()
        completed = sum(trajectory.closing for trajectory in active)
        self._states["active"].set(len(active) - completed)
        self._states["completed"].set(completed)
        idle = resident = missing = 0
        for trajectory in table.idle():
            idle += 1
            resident += trajectory.resident_tokens
            missing += trajectory.missing_tokens
        self._states["idle"].set(idle)
        self._resident.set(resident)
        self._missing.set(missing)
        self._stats.follow(stats)
        sources = dict.fromkeys(TRAJECTORY_SOURCES, 0) | {OTHER: 0}
        for key, count in stats.items():
            kind, _, source = key.partition("requests_by_source.")
            if not kind and source:
                sources[source if source in TRAJECTORY_SOURCES else OTHER] += count
        self._sources.follow(sources)
        if self._policy is not None:
            self._predictions.follow(self._policy.forecasts)


class ChannelMetrics:
    """What a decode worker told its prefill workers."""

    def __init__(self, families: Families, channel: Channel) -> None:
        self.channel = channel
        self._queued = families.gauge("channel_queued", "Messages that wait to be sent to prefill workers.")
        self._outcomes = Follower(
            {
                outcome: families.counter("hints_total", HINTS_TEXT, source="channel", outcome=outcome)
                for outcome in CHANNEL
            }
        )

    def update(self) -> None:
        states = self.channel.state()
        self._queued.set(sum(state["queued"] for state in states))
        self._outcomes.follow({outcome: sum(state[outcome] for state in states) for outcome in CHANNEL})


class DoorMetrics:
    """Requests of new trajectories that wait for admission (`scheduling.admission`)."""

    def __init__(self, families: Families, door: Door) -> None:
        self.door = door
        self._waiting = families.gauge("admission_queue", "First requests that wait at the door.")
        self._oldest = families.gauge(
            "admission_oldest_wait_seconds", "How long the first one at the door has waited."
        )
        text = "Trajectories let in, by why."
        self._let_in = Follower(
            {why: families.counter("admissions_total", text, reason=why) for why in door.let_in}
        )
        text = "Time that trajectories waited at the door before they were let in, all together."
        self._waited = Follower({"waited_s": families.counter("admission_wait_seconds_total", text)})

    def update(self) -> None:
        state = self.door.state()
        self._waiting.set(state["waiting"])
        self._oldest.set(state["oldest_wait_s"])
        self._let_in.follow(state["let_in"])
        self._waited.follow(state)


def measure(
    collector: SchedulerMetricsCollector,
    cache: AgentRadixCache | None,
    channel: Channel | None,
    door: Door | None = None,
    registry: CollectorRegistry | None = None,
) -> Metrics:
    """Metrics of what this scheduler has; arguments as of `Families`, None for what it has not."""
    families = Families(collector, registry)
    parts: list[Part] = []
    if cache is not None:
        parts.append(CacheMetrics(families, cache))
    if channel is not None:
        parts.append(ChannelMetrics(families, channel))
    if door is not None:
        parts.append(DoorMetrics(families, door))
    return Metrics(parts)
