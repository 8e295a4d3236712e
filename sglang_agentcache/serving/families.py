"""Prometheus metrics with the labels of one scheduler process.

As SGLang 0.5.23 makes its own (`srt/observability/metrics_collector.py: SchedulerMetricsCollector`): each scheduler
process has a set, labelled model_name, engine_type, tp_rank and so on, and `/metrics` gathers all processes' through
prometheus_client's multiprocess files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector

PREFIX = "sglang:agentcache_"


class Families:
    """Makes metrics; those of one name are one family, which is registered once.

    Args:
        collector: SGLang's: its labels, and the metric classes it uses (a stat logger may bring others).
        registry: None for prometheus_client's own.
    """

    def __init__(
        self, collector: SchedulerMetricsCollector, registry: CollectorRegistry | None = None
    ) -> None:
        # prometheus_client decides at its first import whether it writes multiprocess files, by a variable that
        # SGLang's launcher sets late.
        import prometheus_client

        self._counter = collector._counter_cls or prometheus_client.Counter
        self._gauge = collector._gauge_cls or prometheus_client.Gauge
        self._histogram = collector._histogram_cls or prometheus_client.Histogram
        self._labels = {name: str(value) for name, value in collector.labels.items()}
        self._options: dict[str, Any] = {} if registry is None else {"registry": registry}
        self._made: dict[str, Any] = {}

    def counter(self, name: str, text: str, **own: str) -> Any:
        """The counter of these label values; the name ends in ``_total``."""
        return self._child(self._counter, name, text, own)

    def gauge(self, name: str, text: str, **own: str) -> Any:
        return self._child(self._gauge, name, text, own, multiprocess_mode="mostrecent")

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], **own: str) -> Any:
        return self._child(self._histogram, name, text, own, buckets=buckets)

    def _child(self, kind: Any, name: str, text: str, own: dict[str, str], **options: Any) -> Any:
        family = self._made.get(name)
        if family is None:
            family = kind(PREFIX + name, text, (*self._labels, *own), **options, **self._options)
            self._made[name] = family
        return family.labels(**self._labels, **own)


class Follower:
    """Raises counters by what counts kept elsewhere have grown.

    Args:
        counters: by the count's name.
    """

    def __init__(self, counters: Mapping[str, Any]) -> None:
        self._counters = counters
        self._seen: dict[str, float] = {}

    def follow(self, counts: Mapping[str, Any]) -> None:
        """What has no counter here is left out."""
        for name in counts.keys() & self._counters.keys():
            grown = counts[name] - self._seen.get(name, 0)
            if grown > 0:
                self._seen[name] = counts[name]
                self._counters[name].inc(grown)
