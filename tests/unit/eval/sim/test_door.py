"""Trajectory admission in the simulator: the server's door in front of the simulated worker."""

import numpy as np
import pytest


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


def test_it_is_the_same_every_time(tau, simulate):
    pool = 2 * max(item.peak_tokens for item in tau)
    one, two = (simulate("rr", tau, 12, pool, admission="auto") for _ in range(2))
    assert one.requests == two.requests
    assert one.door == two.door
