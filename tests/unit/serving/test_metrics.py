"""Our metrics follow what a real cache does, with labels out of bounded sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector
from sglang.srt.runtime_context import get_context

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.disagg.channel import Channel
from sglang_agentcache.disagg.messages import Ended
from sglang_agentcache.disagg.settings import ChannelSettings
from sglang_agentcache.scheduling.admission import Door
from sglang_agentcache.serving.families import PREFIX
from sglang_agentcache.serving.metrics import OTHER, measure
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from tests.support.serving import Server, publish_sglang_config

LABELS = {"model_name": "tiny", "engine_type": "unified", "tp_rank": 0, "moe_ep_rank": 0}


@pytest.fixture(scope="module")
def collector() -> SchedulerMetricsCollector:
    """SGLang's own; it registers itself with the process, so there is one."""
    publish_sglang_config()
    return SchedulerMetricsCollector(labels=LABELS, server_args=get_context().server_args)


class Seen:
    """What a scrape of the metrics would give, by name and own labels."""

    def __init__(self, collector: SchedulerMetricsCollector, policy: str) -> None:
        self.server = Server("rust", 1, 2048, AgentCacheConfig(policy, chunk_tokens=128))
        self.registry = CollectorRegistry()
        self.metrics = measure(collector, self.server.cache, None, registry=self.registry)

    def __call__(self, name: str, **own: str) -> float | None:
        self.metrics.update()
        labels = {key: str(value) for key, value in LABELS.items()}
        return self.registry.get_sample_value(PREFIX + name, {**labels, **own})

    def series(self) -> Iterator[tuple[str, dict[str, str]]]:
        for family in self.registry.collect():
            for sample in family.samples:
                yield sample.name, sample.labels


@pytest.fixture
def seen(collector: SchedulerMetricsCollector) -> Seen:
    return Seen(collector, "rr")


@pytest.fixture
def predicting(collector: SchedulerMetricsCollector) -> Seen:
    return Seen(collector, "predictive")


def tokens(agent: int, count: int) -> list[int]:
    return [10_000 * (agent + 1) + i for i in range(count)]


def serve(seen: Seen, agent: int, count: int, **options: Any) -> None:
    rid = f"{agent}-{count}"
    seen.server.serve(seen.server.request(rid, tokens(agent, count), trajectory=f"t{agent}", **options))


def test_trajectories_and_their_tokens(seen: Seen) -> None:
    serve(seen, 0, 300)
    serve(seen, 1, 500)
    running = seen.server.request("r", tokens(2, 100), trajectory="t2")
    seen.server.arrive(running)
    assert seen("trajectories", state="idle") == 2
    assert seen("trajectories", state="active") == 1
    assert seen("idle_tokens", where="resident") == 800
    # The last token of an output has no KV yet.
    assert seen("idle_tokens", where="missing") == 2
    assert seen.server.evict(256) == 256
    assert seen("idle_tokens", where="resident") == 544
    assert seen("idle_tokens", where="missing") == 258
    seen.server.cache.complete(TrajectoryKey(Namespace(), "t2"))
    assert seen("trajectories", state="active") == 0
    assert seen("trajectories", state="completed") == 1
    seen.server.abort_queued(running)
    assert seen("trajectories", state="completed") == 0


def test_evicted_tokens_by_reason(seen: Seen) -> None:
    serve(seen, 0, 300)
    serve(seen, 1, 300)
    seen.server.evict(200)
    assert seen("tail_chunks_total", policy="rr") == 2
    assert seen("evicted_tokens_total", policy="rr", reason="idle_tail") == 256
    assert seen("evicted_tokens_total", policy="rr", reason="unowned") == 0
    seen.server.evict(50)
    assert seen("tail_chunks_total", policy="rr") == 3


def test_completion(seen: Seen) -> None:
    serve(seen, 0, 300)
    serve(seen, 1, 200, final=True)
    seen.server.cache.complete(TrajectoryKey(Namespace(), "t0"))
    assert seen("completions_total") == 2
    assert seen("released_tokens_total") == 500
    assert seen("hints_total", source="request", outcome="final") == 1
    assert seen("hints_total", source="request", outcome="trajectory_id") == 2


def test_uncached_tokens_of_first_requests_and_of_returns(seen: Seen) -> None:
    serve(seen, 0, 300)
    seen.server.evict(100)
    back = seen.server.request("back", tokens(0, 400), trajectory="t0")
    back.cached_tokens = 172
    seen.server.serve(back)
    assert seen("uncached_tokens_count", kind="first") == 1
    assert seen("uncached_tokens_sum", kind="first") == 300
    assert seen("uncached_tokens_count", kind="continuation") == 1
    assert seen("uncached_tokens_sum", kind="continuation") == 228


def test_an_aborted_request_is_no_return(seen: Seen) -> None:
    request = seen.server.request("r", tokens(0, 300), trajectory="t0", output_tokens=4)
    seen.server.arrive(request)
    assert seen.server.admit(request)
    seen.server.first_token(request, 1)
    seen.server.abort_running(request)
    assert seen("uncached_tokens_count", kind="first") == 0


def test_what_told_a_requests_trajectory(seen: Seen) -> None:
    serve(seen, 0, 300)
    seen.server.serve(seen.server.request("anonymous", tokens(0, 301)))
    odd = seen.server.request("odd", tokens(1, 50), trajectory="t1")
    odd.sampling_params.custom_params["agentcache"]["source"] = "someone's own"
    seen.server.serve(odd)
    assert seen("requests_total", source="hint") == 1
    assert seen("requests_total", source="lineage") == 1
    assert seen("requests_total", source=OTHER) == 1


def test_predictions_by_what_they_rest_on(predicting: Seen) -> None:
    for agent, hints in enumerate(
        ({"expected_idle_s": 3.0}, {"tool_calls": [{"name": "bash"}]}, {"tool_calls": []}, {})
    ):
        request = predicting.server.request(f"r{agent}", tokens(agent, 300), trajectory=f"t{agent}")
        request.sampling_params.custom_params["agentcache"] |= hints
        predicting.server.serve(request)
    for basis in ("client", "tool_call", "person", "prior"):
        assert predicting("predictions_total", basis=basis) == 1
    assert predicting("prediction_fallbacks_total") == 0
    predicting.server.evict(200)
    assert predicting("evicted_tokens_total", policy="predictive", reason="idle_tail") == 256


def test_a_failing_predictor_is_seen(predicting: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(predicting, 0, 300)

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(predicting.server.cache.policy.predictor, "expected_remaining", fail)
    assert predicting.server.evict(100) == 128
    assert predicting("prediction_fallbacks_total") > 0


def test_refreshing_is_rare(seen: Seen) -> None:
    seen.metrics.refresh()
    serve(seen, 0, 300)
    seen.metrics.refresh()
    assert {s.value for f in seen.registry.collect() for s in f.samples if "requests_total" in s.name} == {
        0.0
    }


def test_series_do_not_grow_with_what_clients_send(seen: Seen) -> None:
    before = sorted(map(str, seen.series()))
    for agent in range(20):
        request = seen.server.request(f"r{agent}", tokens(agent, 50), trajectory=f"t{agent}")
        request.sampling_params.custom_params["agentcache"]["source"] = f"source {agent}"
        request.sampling_params.custom_params["agentcache"]["tool_calls"] = [{"name": f"tool{agent}"}]
        seen.server.serve(request)
    seen.metrics.update()
    after = sorted(map(str, seen.series()))
    assert len(after) == len(before) and all("tool1" not in series for series in after)


def test_what_a_decode_worker_could_not_send(collector: SchedulerMetricsCollector) -> None:
    registry = CollectorRegistry()
    # Nobody listens there.
    channel = Channel(ChannelSettings(("http://127.0.0.1:1",), "s" * 24), max_queued=2)
    metrics = measure(collector, None, channel, registry=registry)
    for room in range(5):
        channel.put(None, lambda room=room: Ended(room=room, output_tokens=1))
    metrics.update()
    labels = {key: str(value) for key, value in LABELS.items()}
    hints = {**labels, "source": "channel"}
    assert registry.get_sample_value(PREFIX + "hints_total", {**hints, "outcome": "dropped"}) == 3
    assert registry.get_sample_value(PREFIX + "hints_total", {**hints, "outcome": "sent"}) == 0
    assert registry.get_sample_value(PREFIX + "channel_queued", labels) == 2
    channel.close()


def test_admission(collector: SchedulerMetricsCollector) -> None:
    server = Server("rust", 1, 2048, AgentCacheConfig("rr"))
    clock = [0.0]
    door = Door(server.cache.table, server.capacity, lambda: clock[0])
    registry = CollectorRegistry()
    metrics = measure(collector, None, None, door, registry)
    door.overcommit.limit = 1.0
    for agent in range(3):
        request = server.request(f"r{agent}", tokens(agent, 1_000), trajectory=f"t{agent}")
        server.arrive(request)
        door.arrived(request)
    clock[0] = 2.0
    entered = door.enter(idle=False)
    clock[0] = 5.0
    metrics.update()
    labels = {key: str(value) for key, value in LABELS.items()}

    def value(name: str, **own: str) -> float | None:
        return registry.get_sample_value(PREFIX + name, {**labels, **own})

    assert value("admission_queue") == 3 - len(entered) == 1
    assert value("admission_oldest_wait_seconds") == 5.0
    assert value("admissions_total", reason="room") == 2
    assert value("admissions_total", reason="patience") == 0
    assert value("admission_wait_seconds_total") == 4.0
