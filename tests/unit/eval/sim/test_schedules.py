"""Schedule policies in the simulator: their names, and that ours really order."""

import math

import pytest

pytest.importorskip("sglang.srt.managers.schedule_policy")

from sglang.srt.managers.schedule_policy import PrefillAdder

from eval.sim.scheduler import Settings, SimulationError
from eval.sim.schedules import Schedule
from sglang_agentcache.scheduling.order import DEFAULT_PATIENCE


def test_names():
    assert Schedule.parse("hrrn") == Schedule("hrrn", None)
    assert Schedule.parse("prefix-aware") == Schedule("prefix-aware", DEFAULT_PATIENCE)
    assert Schedule.parse("prefix-aware:patience=2.5").patience == 2.5
    assert Schedule.parse("prefix-aware-greedy").patience == math.inf


@pytest.mark.parametrize("text", ["prefix", "fcfs:patience=1", "prefix-aware-greedy:patience=1"])
def test_an_unknown_name_lists_the_known_ones(text):
    with pytest.raises(ValueError, match=r"allowed are fcfs, .*, prefix-aware, .*; got"):
        Schedule.parse(text)


@pytest.mark.parametrize("option", ["patience=-1", "patience=x", "patience=nan", "age=1", "4"])
def test_a_bad_patience(option):
    with pytest.raises(ValueError, match="patience=NUMBER takes a number of at least 0"):
        Schedule.parse(f"prefix-aware:{option}")


def ttfts(outcome):
    return [(record.trajectory_id, record.turn, record.ttft_s) for record in outcome.requests]


def test_patience_zero_serves_as_fcfs_does(trajectories, simulate):
    items = trajectories("tau2", 16)
    pool = 4 * max(item.peak_tokens for item in items)

    def run(schedule):
        # Chunks small enough that prefills under way share them; the conservation checks are on.
        return simulate("rr", items, 16, pool, ramp_s=0.0, settings=Settings(schedule, 256))

    fcfs = ttfts(run("fcfs"))
    assert ttfts(run("prefix-aware:patience=0")) == fcfs
    assert ttfts(run("prefix-aware-greedy")) != fcfs


def test_sglangs_shortest_prefill_first_finds_the_memory_that_it_plans_with(
    trajectories, simulate, monkeypatch
):
    items = trajectories("tau2", 16)
    pool = 3 * max(item.peak_tokens for item in items) // 2

    def run():
        return simulate("lru", items, 16, pool, ramp_s=0.0, settings=Settings("shortest-prefill-first", 256))

    assert run().finished
    monkeypatch.setattr("eval.sim.scheduler.adder_class", lambda _policy: PrefillAdder)
    with pytest.raises(SimulationError, match="256 slots wanted"):
        run()
