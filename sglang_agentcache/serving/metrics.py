"""What the cache does, on SGLang's own `GET /metrics` (`--enable-metrics`).

As SGLang 0.5.23 does it (`srt/observability/metrics_collector.py: SchedulerMetricsCollector`): one set of metrics in
each scheduler process, with that process's labels (model_name, engine_type, tp_rank, ...), on the ranks that report
SGLang's own, collected from all processes through prometheus_client's multiprocess files. docs/metrics.md lists them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_agentcache.eviction.ranked import BASES, RankedPolicy

from .hints import FIELDS
from .state import TRAJECTORY_SOURCES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector

    from sglang_agentcache.cache.radix_cache import AgentRadixCache
    from sglang_agentcache.trajectory.model import Trajectory

PREFIX = "sglang:agentcache_"

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
}
"""Label `source`: outcomes. A request carries fields (`hints.FIELDS`); an output is read for tool calls."""

OTHER = "other"
"""Stands for every value of a label that is not listed here: label sets are bounded."""

UNCACHED_BUCKETS = (
    0,
    64,
    128,
    256,
    512,
    *(1024 * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)),
    262144,
)
"""Tokens: fine around one tail chunk, then up to a lost long history."""

REFRESH_S = 1.0
SHARE = 0.002
"""Of the scheduler's time, at most, goes into refreshing: counting tokens looks at every idle trajectory."""


class AgentCacheMetrics:
    """The metrics of one scheduler: counters that follow the cache's own, gauges, and one histogram.

    Args:
        collector: SGLang's, for its labels; the metric classes are those that it uses (a stat logger may bring others).
        cache: ours. From here on it tells this object of every request that finishes.
        registry: None for prometheus_client's own.
    """

    def __init__(
        self,
        collector: SchedulerMetricsCollector,
        cache: AgentRadixCache,
        registry: CollectorRegistry | None = None,
    ) -> None:
        # prometheus_client decides at its first import whether it writes multiprocess files, by a variable that
        # SGLang's launcher sets late.
        import prometheus_client

        self.cache = cache
        self.policy = cache.policy if isinstance(cache.policy, RankedPolicy) else None
        labels = {name: str(value) for name, value in collector.labels.items()}
        options: dict[str, Any] = {} if registry is None else {"registry": registry}

        def counter(name: str, text: str, *own: str) -> Any:
            made = collector._counter_cls or prometheus_client.Counter
            return made(PREFIX + name, text, (*labels, *own), **options)

        def gauge(name: str, text: str, *own: str) -> Any:
            made = collector._gauge_cls or prometheus_client.Gauge
            return made(PREFIX + name, text, (*labels, *own), multiprocess_mode="mostrecent", **options)

        def of(metric: Any, **own: str) -> Any:
            return metric.labels(**labels, **own)

        trajectories = gauge("trajectories", "Number of trajectories.", "state")
        self._states = {state: of(trajectories, state=state) for state in STATES}
        tokens = gauge(
            "idle_tokens", "Tokens of the histories of idle trajectories, on the device or not.", "where"
        )
        self._resident, self._missing = of(tokens, where="resident"), of(tokens, where="missing")

        policy = cache.agent_config.policy
        evicted = counter("evicted_tokens_total", "Device tokens evicted.", "policy", "reason")
        sources = counter("requests_total", "Requests, by what told their trajectory.", "source")
        hints = counter(
            "hints_total", "What was learned of trajectories, by where from.", "source", "outcome"
        )
        self._following: dict[str, Any] = {
            **{key: of(evicted, policy=policy, reason=reason) for reason, key in EVICTED.items()},
            **{
                f"hints.{source}.{outcome}": of(hints, source=source, outcome=outcome)
                for source, outcomes in HINTS.items()
                for outcome in outcomes
            },
            **{f"requests_by_source.{name}": of(sources, source=name) for name in TRAJECTORY_SOURCES},
            "tail_chunks": of(counter("tail_chunks_total", "Tail chunks cut.", "policy"), policy=policy),
            "released_tokens": of(counter("released_tokens_total", "Tokens freed by completion.")),
            "completed": of(counter("completions_total", "Trajectories said to be complete.")),
        }
        self._other_source = of(sources, source=OTHER)
        self._seen: dict[str, int] = {}
        self._predicting: dict[str, Any] = {}
        if self.policy is not None:
            predictions = counter(
                "predictions_total", "Idle times predicted, by what is known of the wait.", "basis"
            )
            self._predicting = {basis: of(predictions, basis=basis) for basis in BASES}
            self._predicting["failed"] = of(
                counter(
                    "prediction_fallbacks_total", "Trajectories ordered by idle time as the predictor failed."
                )
            )
        self._predicted: dict[str, int] = {}

        histogram = (collector._histogram_cls or prometheus_client.Histogram)(
            PREFIX + "uncached_tokens",
            "Prompt tokens that a request had to prefill.",
            (*labels, "kind"),
            buckets=UNCACHED_BUCKETS,
            **options,
        )
        self._uncached = {kind: of(histogram, kind=kind) for kind in ("first", "continuation")}
        self._next_refresh = 0.0
        cache.on_finished = self.finished

    def finished(self, req: Req, trajectory: Trajectory) -> None:
        """A request has finished, still known to its trajectory."""
        if isinstance(req.finished_reason, FINISH_ABORT):
            return
        # The request that made the trajectory has its number.
        first = trajectory.requests.get(req.rid) == trajectory.serial
        uncached = max(0, len(req.origin_input_ids) - req.cached_tokens)
        self._uncached["first" if first else "continuation"].observe(uncached)

    def refresh(self) -> None:
        """Called in every round of the scheduler; does something about once in `REFRESH_S`."""
        began = time.monotonic()
        if began < self._next_refresh:
            return
        self.update()
        now = time.monotonic()
        self._next_refresh = now + max(REFRESH_S, (now - began) / SHARE)

    def update(self) -> None:
        """Bring every gauge and counter up to date."""
        table = self.cache.table
        in_flight = {table.of_request(rid) for rid in table.requests_in_flight()}
        completed = sum(trajectory is not None and trajectory.closing for trajectory in in_flight)
        self._states["active"].set(len(in_flight) - completed)
        self._states["completed"].set(completed)
        idle = resident = missing = 0
        for trajectory in table.idle():
            idle += 1
            resident += trajectory.resident_tokens
            missing += trajectory.missing_tokens
        self._states["idle"].set(idle)
        self._resident.set(resident)
        self._missing.set(missing)
        self._follow(self.cache.stats, self._following, self._seen)
        if self.policy is not None:
            self._follow(self.policy.forecasts, self._predicting, self._predicted)

    def _follow(self, counts: Mapping[str, int], metrics: Mapping[str, Any], seen: dict[str, int]) -> None:
        """Raise each counter by what its count has grown since the last time."""
        for key, count in counts.items():
            grown = count - seen.get(key, 0)
            if grown <= 0:
                continue
            seen[key] = count
            metric = metrics.get(key)
            if metric is None and key.startswith("requests_by_source."):
                metric = self._other_source
            if metric is not None:
                metric.inc(grown)
