"""Trajectory admission in the simulator: the server's door in front of the simulated worker."""

import numpy as np
import pytest

from eval.trace import Trajectory, Turn
from sglang_agentcache.scheduling.admission import IDLE_S


@pytest.fixture(scope="module")
def tau(trajectories):
    return trajectories("tau2", 40)


def waits(outcome) -> tuple[float, float]:
    """Mean TTFT of first requests and of the others, seconds."""
    first = [record.ttft_s for record in outcome.requests if record.turn == 0]
    others = [record.ttft_s for record in outcome.requests if record.turn]
    return float(np.mean(first)), float(np.mean(others))


def test_where_there_is_room_nothing_changes(tau, simulate):
    enough = sum(item.peak_tokens for item in tau)
    off, auto = (simulate("rr", tau, 8, enough, admission=mode) for mode in ("off", "auto"))
    assert auto.requests == off.requests
    assert auto.door["let_in"] == {"room": len(tau), "idle": 0, "patience": 0}


def test_under_overload_newcomers_wait_for_those_inside(tau, simulate):
    pool = 2 * max(item.peak_tokens for item in tau)
    off, auto = (
        simulate("lru+completion", tau, 24, pool, "h20", admission=mode, ramp_s=1.0)
        for mode in ("off", "auto")
    )
    assert len(auto.session_s) == len(off.session_s) == len(tau)
    assert sum(auto.door["let_in"].values()) == len(tau)
    assert auto.door["waiting"] == 0
    # Less is prefilled, those inside wait less, and the newcomers pay for it.
    assert auto.prefill_tokens < off.prefill_tokens
    (off_first, off_others), (auto_first, auto_others) = waits(off), waits(auto)
    assert auto_others < off_others
    assert auto_first > off_first


def test_where_prefill_is_fast_nobody_waits_for_long(tau, simulate):
    """The same overload: all histories could be prefilled again and again."""
    pool = 2 * max(item.peak_tokens for item in tau)
    auto = simulate("lru+completion", tau, 24, pool, admission="auto", ramp_s=1.0)
    assert auto.door["stake"] < 1
    assert auto.door["longest_wait_s"] < 0.1 * auto.makespan_s


def test_while_those_inside_wait_for_slow_tools_another_is_let_in(simulate):
    """Nothing happens meanwhile: a server that has nothing to do plans all the same."""

    def agent(name: str) -> Trajectory:
        first = Turn(kind="user", prompt_tokens=600, new_input_tokens=600, output_tokens=10)
        tool = Turn(kind="tool", prompt_tokens=620, new_input_tokens=10, output_tokens=10, gap_s=50.0)
        return Trajectory(turns=[first, tool], trajectory_id=name, session_group="g", source="s")

    outcome = simulate("rr", [agent("one"), agent("two")], 2, 1_000, admission="auto", ramp_s=2.0)
    assert outcome.door["let_in"] == {"room": 1, "idle": 1, "patience": 0}
    assert IDLE_S - 2 < outcome.door["longest_wait_s"] < IDLE_S + 2


def test_it_is_the_same_every_time(tau, simulate):
    pool = 2 * max(item.peak_tokens for item in tau)
    one, two = (simulate("rr", tau, 12, pool, admission="auto") for _ in range(2))
    assert one.requests == two.requests
    assert one.door == two.door
