"""The simulator over the real cache: conservation, determinism, the regimes of the papers."""

import json

import numpy as np
import pytest

from eval import records, scale
from eval.sim import baselines
from eval.sim.baselines import baseline
from eval.sim.cost import roofline
from eval.sim.scheduler import Settings, SimulationError
from eval.sim.simulation import Run, Simulation
from eval.trace import Trajectory, Turn

PRESSURE = 1.5


def lines(outcome) -> bytes:
    return b"".join(records.encode(record) for record in outcome.requests)


def uncached(outcome) -> np.ndarray:
    return np.array([record.uncached_tokens for record in outcome.requests])


@pytest.fixture(scope="module")
def tau(trajectories):
    return trajectories("tau2", 40)


@pytest.fixture(scope="module")
def tau_pool(tau) -> int:
    return scale.expected_demand(tau, 12).pool_for(PRESSURE)


@pytest.mark.parametrize("policy", baselines.names())
def test_every_baseline_conserves_memory_and_serves_every_request_once(policy, tau, tau_pool, simulate):
    outcome = simulate(policy, tau, 12, tau_pool)
    assert outcome.finished and not any(record.error for record in outcome.requests)
    assert len(outcome.requests) == sum(len(item.turns) for item in tau)
    assert len(outcome.session_s) == len(tau)
    assert outcome.evicted_tokens > 0, "no pressure, so the test shows nothing"


@pytest.mark.parametrize("schedule", ["fcfs", "lpm", "hrrn", "shortest-prefill-first"])
def test_every_schedule_policy(schedule, tau, tau_pool, simulate):
    outcome = simulate("rr", tau, 24, tau_pool, settings=Settings(schedule))
    assert outcome.finished


@pytest.fixture(scope="module")
def enough(tau) -> int:
    return sum(turn.prompt_tokens + turn.output_tokens for item in tau for turn in item.turns)


@pytest.mark.parametrize("completion", [False, True])
def test_without_pressure_all_policies_are_equal_byte_for_byte(tau, enough, simulate, completion):
    """All that hear the same of their clients: without completion signals, or with them."""
    known = {name: baseline(name) for name in baselines.names()}
    if completion:
        names = [name for name, item in known.items() if not item.stock and item.completion is not False]
    else:
        names = [name for name, item in known.items() if not item.completion]
    assert len(names) > 5
    results = {lines(simulate(name, tau, 12, enough, completion=completion)) for name in names}
    assert len(results) == 1


def test_without_pressure_completion_costs_only_what_begins_anew(tau, enough, simulate):
    """A release frees what no live trajectory uses, the common prefix included; the next one that begins with it
    prefills it again. Nothing else may differ from plain LRU."""

    def by_request(policy: str) -> dict[tuple[str, int], int]:
        outcome = simulate(policy, tau, 12, enough)
        return {(record.trajectory_id, record.turn): record.uncached_tokens for record in outcome.requests}

    kept, released = by_request("lru"), by_request("rr")
    dearer = {request for request in kept if released[request] != kept[request]}
    assert dearer, "no prefix was released, so the test shows nothing"
    assert {turn for _, turn in dearer} == {0}
    assert all(released[request] > kept[request] for request in dearer)


def test_the_same_input_gives_the_same_bytes_and_another_order_does_not(tau, tau_pool, simulate):
    first, again, other = (simulate("rr", items, 12, tau_pool) for items in (tau, tau, tau[::-1]))
    assert lines(first) == lines(again)
    assert json.dumps(first.pressure) == json.dumps(again.pressure)
    assert lines(first) != lines(other)


@pytest.mark.parametrize("profile", ["tau2", pytest.param("swe-bench", marks=pytest.mark.slow),
                                     pytest.param("coding-agent", marks=pytest.mark.slow)])  # fmt: skip
def test_between_active_and_live_demand_rr_trims_the_tail_and_the_oracle_the_mean(
    profile, trajectories, simulate
):
    limits = (
        {"max_turns": 40, "max_context": 60_000, "boundary_s": 120.0} if profile == "coding-agent" else {}
    )
    items = trajectories(profile, 160 if profile == "tau2" else 60, **limits)
    concurrency = 16
    pool = scale.expected_demand(items, concurrency).pool_for(1.25)
    names = (
        "lru",
        "lru+completion",
        "slru",
        "tlru",
        "priority",
        "session-ref",
        "whole",
        "infercept",
        "rr",
        "oracle",
    )
    results = {name: simulate(name, items, concurrency, pool) for name in names}
    active = np.array([record.active_tokens for record in results["rr"].requests]) / pool
    assert np.median(active) < 1, "active demand must fit for the regime to hold"
    p99 = {name: np.percentile(uncached(outcome), 99) for name, outcome in results.items()}
    mean = {name: uncached(outcome).mean() for name, outcome in results.items()}
    assert p99["rr"] < p99["lru+completion"]
    assert min(mean, key=mean.__getitem__) == "oracle", mean


def test_completion_releases_at_once(tau, simulate):
    enough = sum(item.peak_tokens for item in tau) * 2
    assert simulate("rr", tau, 4, enough).released_tokens > 0
    assert simulate("rr", tau, 4, enough, completion=False).released_tokens == 0
    assert simulate("rr+tiers", tau, 4, enough).released_tokens == 0


@pytest.mark.parametrize(
    ("policy", "durations", "calls"),
    [("predictive", False, True), ("predictive+truth", True, True), ("predictive+blind", False, False)],
)
def test_what_a_policy_hears_of_tools(tau, tau_pool, simulate, monkeypatch, policy, durations, calls):
    from sglang_agentcache.cache.radix_cache import AgentRadixCache

    said: list[dict[str, object]] = []
    arrived = AgentRadixCache.request_arrived

    def listen(self, req):
        said.append(req.sampling_params.custom_params["agentcache"])
        arrived(self, req)

    monkeypatch.setattr(AgentRadixCache, "request_arrived", listen)
    simulate(policy, tau, 12, tau_pool)
    assert any("expected_idle_s" in one for one in said) is durations
    assert any("tool_calls" in one for one in said) is calls


def test_long_prompts_are_chunked_and_cost_the_same_tokens(tau, tau_pool, simulate):
    enough = sum(item.peak_tokens for item in tau) * 2
    whole = simulate("lru", tau, 12, enough)
    chunked = simulate("lru", tau, 12, enough, settings=Settings(chunked_prefill_size=256))
    assert chunked.prefill_tokens == pytest.approx(whole.prefill_tokens, rel=0.02)
    assert chunked.makespan_s > whole.makespan_s


def test_decode_out_of_memory_retracts_and_still_serves_everyone(simulate):
    # Clients ask for at most 4,000 tokens and take nearly all; SGLang's new_token_ratio expects far fewer.
    items = [
        Trajectory(
            trajectory_id=f"t{index}",
            session_group=f"t{index}",
            source="test",
            turns=[Turn(kind="user", prompt_tokens=100, new_input_tokens=100, output_tokens=3_900)],
        )
        for index in range(12)
    ]
    outcome = simulate("rr", items, 12, 20_000, max_new_tokens=4_000, ramp_s=12.0)
    assert outcome.retractions > 0
    assert all(record.error is None and record.output_tokens == 3_900 for record in outcome.requests)


def test_pd_prefills_the_last_answer_again_because_it_was_made_elsewhere(tau, simulate):
    enough = sum(item.peak_tokens for item in tau) * 2
    together = simulate("rr", tau, 12, enough)
    apart = simulate(
        "rr", tau, 12, enough, decode_workers=3, decode_capacity_tokens=enough, transfer_s_per_token=1e-6
    )
    assert apart.finished and len(apart.requests) == len(together.requests)
    answers = sum(turn.output_tokens for item in tau for turn in item.turns[:-1])
    # The last token of an answer is never resident, on any server.
    assert uncached(apart).sum() - uncached(together).sum() == pytest.approx(answers, rel=0.05)


def test_pd_waits_for_room_at_the_decode_servers(tau, simulate):
    longest = max(item.peak_tokens for item in tau)
    narrow = simulate("rr", tau, 12, longest * 12, decode_workers=1, decode_capacity_tokens=longest)
    wide = simulate("rr", tau, 12, longest * 12, decode_workers=3, decode_capacity_tokens=longest * 12)
    assert narrow.finished
    assert narrow.makespan_s > wide.makespan_s


def test_a_context_above_the_pool_is_refused(tau):
    run = Run(baseline("rr"), 4, 1_000)
    with pytest.raises(SimulationError, match="exceeds the pool"):
        Simulation(run, tau, roofline("qwen3-8b", "h200")).run()


def test_conservation_is_really_checked(tau, tau_pool, monkeypatch):
    from eval.sim.world import AgentCache

    honest = AgentCache.evictable_size
    monkeypatch.setattr(AgentCache, "evictable_size", lambda self: honest(self) + 1)
    with pytest.raises(SimulationError, match="add up"):
        Simulation(Run(baseline("rr"), 4, tau_pool, check=True), tau, roofline("qwen3-8b", "h200")).run()
