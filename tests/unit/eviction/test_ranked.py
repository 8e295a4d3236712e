"""The policies that predict: `predictive` and `convex`, with the predictor that the package ships."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sglang_agentcache.eviction import POLICIES, ranked
from sglang_agentcache.eviction.convex import Convex
from sglang_agentcache.eviction.predictive import Predictive
from sglang_agentcache.eviction.ranked import RankedPolicy
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving.hints import Hints


@dataclass
class Idle:
    serial: int
    hints: Hints = field(default_factory=Hints)
    idle_since: float = 0.0
    resident_tokens: int = 8192
    missing_tokens: int = 0
    closing: bool = False
    memo: Any = None


def bash(command: str) -> Hints:
    return Hints(tool_calls=(ToolCall("Bash", {"command": command}),))


def said(seconds: float) -> Hints:
    return Hints(tool_calls=(ToolCall("Bash", {"command": "ls"}),), expected_idle_s=seconds)


def started(policy: RankedPolicy) -> RankedPolicy:
    policy.start()
    return policy


@pytest.fixture(params=["predictive", "convex"])
def policy(request: pytest.FixtureRequest) -> RankedPolicy:
    made = POLICIES[request.param]()
    assert isinstance(made, RankedPolicy)
    return started(made)


def rounds(policy: RankedPolicy, count: int, now: float) -> list[int]:
    """Serials of the victims of one eviction; each visit costs a chunk."""
    policy.begin_eviction(now)
    victims = []
    for _ in range(count):
        victim = policy.victim(now)
        assert isinstance(victim, Idle)
        victims.append(victim.serial)
        victim.missing_tokens += 1024
        victim.resident_tokens -= 1024
        policy.visited(victim, now)
    return victims


def test_a_slow_tool_goes_before_a_quick_one(policy: RankedPolicy) -> None:
    for idle in (Idle(0, bash("ls")), Idle(1, bash("sleep 120")), Idle(2, bash("cat a.txt"))):
        policy.join(idle, 0.0)
    assert rounds(policy, 1, 0.1) == [1]


def test_a_person_goes_before_a_tool(policy: RankedPolicy) -> None:
    policy.join(Idle(0, bash("ls")), 0.0)
    policy.join(Idle(1, Hints(tool_calls=())), 0.0)
    assert rounds(policy, 1, 0.1) == [1]


def test_what_the_client_says_counts_until_it_has_passed(policy: RankedPolicy) -> None:
    policy.join(Idle(0, said(30.0)), 0.0)
    policy.join(Idle(1, said(10.0)), 0.0)
    assert rounds(policy, 1, 1.0) == [0]
    # At 29 s the first is about to return, the second has outlasted its word.
    policy.fresh_tokens = 0
    policy.begin_eviction(29.0), policy.begin_eviction(29.0)
    assert rounds(policy, 1, 29.0) == [1]


def test_predictive_takes_one_until_it_is_gone() -> None:
    policy = started(Predictive())
    for serial, seconds in enumerate((5.0, 60.0, 20.0)):
        policy.join(Idle(serial, said(seconds)), 0.0)
    assert rounds(policy, 4, 0.0) == [1, 1, 1, 1]


def test_convex_spreads_evenly_over_equals() -> None:
    policy = started(Convex(exponent=1.0))
    for serial in range(4):
        policy.join(Idle(serial, said(20.0)), 0.0)
    assert sorted(rounds(policy, 8, 0.0)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_convex_judges_what_is_missing_by_what_the_others_miss() -> None:
    """A chunk more costs equals nearly the same; where the others miss little, the one that misses much is spared."""
    policy = started(Convex())
    for serial, (seconds, missing) in enumerate(((12.0, 8192), (10.0, 0), (1.0, 0), (1.0, 0))):
        policy.join(Idle(serial, said(seconds), missing_tokens=missing), 0.0)
    assert rounds(policy, 1, 0.0) == [1]
    among_equals = started(Convex())
    for serial, (seconds, missing) in enumerate(
        ((12.0, 68_000), (10.0, 60_000), (1.0, 60_000), (1.0, 60_000))
    ):
        among_equals.join(Idle(serial, said(seconds), missing_tokens=missing), 0.0)
    assert rounds(among_equals, 1, 0.0) == [0]


def test_convex_knows_the_size_of_a_chunk() -> None:
    """Whole trajectories: what is left counts; the long one would miss most."""
    for chunk_tokens, first in ((1024, 0), (0, 1)):
        policy = started(Convex(chunk_tokens=chunk_tokens))
        policy.join(Idle(0, said(11.0), resident_tokens=50_000), 0.0)
        policy.join(Idle(1, said(10.0), resident_tokens=2_000), 0.0)
        assert rounds(policy, 1, 0.0) == [first]


def test_convex_with_exponent_0_has_the_order_of_the_return_rate() -> None:
    policy = started(Convex(exponent=0.0, rate="inverse"))
    for serial, seconds in enumerate((5.0, 60.0, 20.0)):
        policy.join(Idle(serial, said(seconds), missing_tokens=serial * 50_000), 0.0)
    assert rounds(policy, 3, 0.0) == [1, 1, 1]


def test_convex_spares_what_has_lost_much() -> None:
    policy = started(Convex(exponent=1.0))
    policy.join(Idle(0, said(20.0), missing_tokens=50_000), 0.0)
    policy.join(Idle(1, said(18.0)), 0.0)
    assert rounds(policy, 1, 0.0) == [1]


def test_the_turnover_is_measured() -> None:
    policy = Convex()
    assert policy.turnover_s == 60.0
    for second in range(120):
        policy.evicted(1000, 20_000, float(second))
    assert policy.turnover_s == pytest.approx(20.0, rel=0.1)
    assert Convex(tau_s=7.0).turnover_s == 7.0


def test_leaving_and_rejoining(policy: RankedPolicy) -> None:
    one, two = Idle(0, said(50.0)), Idle(1, said(5.0))
    policy.join(one, 0.0)
    policy.join(two, 0.0)
    policy.leave(one)
    policy.leave(one)
    assert len(policy) == 1 and rounds(policy, 1, 0.0) == [1]
    policy.leave(two)
    assert policy.victim(0.0) is None and len(policy) == 0
    policy.join(one, 0.0)
    assert policy.victim(0.0) is one


def test_one_that_joins_between_two_rebuilds_is_judged_before_a_chunk_has_gone() -> None:
    policy = started(Predictive(rebuild_interval=3))
    policy.join(Idle(0, said(5.0)), 0.0)
    assert rounds(policy, 1, 0.0) == [0]
    policy.evicted(1_000, 65_536, 0.0)
    policy.join(Idle(1, said(500.0)), 0.5)
    assert rounds(policy, 1, 0.5) == [0], "the order is still good"
    policy.evicted(24, 65_536, 0.5)
    assert rounds(policy, 1, 0.5) == [1]


def test_or_before_a_second_has_passed() -> None:
    policy = started(Predictive())
    policy.join(Idle(0, said(50.0)), 0.0)
    assert rounds(policy, 1, 0.0) == [0]
    policy.join(Idle(1, said(500.0)), 0.9)
    assert rounds(policy, 1, 0.9) == [0]
    assert rounds(policy, 1, 1.0) == [1]


class Counting(Predictive):
    """Counts how often each trajectory is evaluated; the more it misses, the sooner it goes."""

    def __init__(self) -> None:
        super().__init__(rebuild_interval=1)
        self.fresh_tokens = 0
        self.seen: list[list[int]] = []

    def urgencies(self, trajectories: Any, elapsed_s: np.ndarray) -> np.ndarray:
        self.seen.append([one.serial for one in trajectories])
        return np.array([-float(one.missing_tokens) for one in trajectories])


def test_of_very_many_a_rebuild_takes_some_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "REFRESHED", 10)
    policy = Counting()
    policy.start()
    for serial in range(45):
        policy.join(Idle(serial), 0.0)
    assert policy.victim(0.0) is not None
    assert sorted(policy.seen.pop()) == list(range(45)), "all are new"
    for _ in range(5):
        policy.begin_eviction(0.0)
        assert len(policy._ranking) == 45, "nothing stale is kept"
    assert [len(seen) for seen in policy.seen] == [10, 10, 10, 10, 5]
    assert sorted(serial for seen in policy.seen for serial in seen) == list(range(45))
    policy.join(late := Idle(99, missing_tokens=7), 0.0)
    policy.begin_eviction(0.0)
    assert policy.victim(0.0) is late and policy.seen[-1] == [99], "once"


def test_one_that_returns_to_a_fresh_order_is_ranked_at_once(policy: RankedPolicy) -> None:
    """What it shared with another can become its own while an eviction runs."""
    policy.join(Idle(0, said(5.0)), 0.0)
    shared = Idle(1, said(50.0))
    policy.join(shared, 0.0)
    policy.leave(shared)
    assert rounds(policy, 1, 1.0) == [0]
    policy.join(shared, 1.0)
    assert policy.victim(1.0) is shared
    policy.leave(shared)
    policy.join(shared, 1.5)
    assert policy.victim(1.5).serial == 0, "of an order that is not fresh, it waits for the next one"  # type: ignore[union-attr]


def test_an_abandoned_wait_is_evidence_that_it_takes_long(policy: RankedPolicy) -> None:
    policy.fresh_tokens = 0
    hints = Hints(tool_calls=(ToolCall("deploy_all", "{}"),))
    policy.join(Idle(0, hints), 0.0)
    before = policy.predictor.predict(hints.tool_calls[0])  # type: ignore[index]
    for number in range(1, 30):
        idle = Idle(number, hints)
        policy.join(idle, 0.0)
        policy.begin_eviction(300.0)
        idle.closing = True
        policy.leave(idle)
        policy.leave(idle)
    assert policy.predictor.predict(hints.tool_calls[0]) > max(300.0, 10 * before)  # type: ignore[index]


def test_ties_go_to_the_older(policy: RankedPolicy) -> None:
    for serial in (3, 1, 2):
        policy.join(Idle(serial, said(9.0)), 0.0)
    policy.begin_eviction(0.0)
    victim = policy.victim(0.0)
    assert victim is not None and victim.serial == 1


class LastBits(Predictive):
    """Equal trajectories, as numpy computes them: not equal in the last bits."""

    def urgencies(self, trajectories: Any, elapsed_s: np.ndarray) -> np.ndarray:
        return np.array([0.3 + one.serial % 2 * 2e-16 + one.missing_tokens for one in trajectories])


def test_last_bits_do_not_break_ties() -> None:
    policy = started(LastBits())
    for serial, missing in ((1, 0), (2, 0), (3, 0), (4, -1), (5, 0)):
        policy.join(Idle(serial, missing_tokens=missing), 0.0)
    policy.begin_eviction(0.0)
    order = []
    while (victim := policy.victim(0.0)) is not None:
        order.append(victim.serial)
        policy.leave(victim)
    assert order == [4, 1, 2, 3, 5]


@pytest.mark.parametrize("broken", [RuntimeError("no"), math.nan])
def test_a_broken_predictor_changes_only_the_order(policy: RankedPolicy, broken: object, caplog: Any) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            def fail(*_args: object, **_kwargs: object) -> Any:
                if isinstance(broken, Exception):
                    raise broken
                return np.full(len(_args[0]), broken)  # type: ignore[arg-type]

            return fail

    for serial in range(3):
        policy.join(Idle(serial, bash("ls"), idle_since=10.0 - serial), 10.0)
    policy.predictor = Broken()  # type: ignore[assignment]
    assert len(set(rounds(policy, 5, 11.0))) >= 1
    rounds(policy, 5, 12.0), rounds(policy, 5, 13.0), rounds(policy, 5, 14.0)
    if isinstance(broken, Exception):  # not even preparing and learning work
        late = Idle(9, bash("ls"), idle_since=14.0)
        policy.join(late, 14.0)
        assert len(policy) == 4 and len(set(rounds(policy, 5, 15.0))) >= 1
        policy.leave(late)
        policy.returned(late, 1.0)
    assert caplog.text.count("the predictor failed") == (1 if isinstance(broken, Exception) else 0)


def test_it_learns_from_returns(policy: RankedPolicy) -> None:
    """A tool nobody has heard of turns out slow, another quick."""
    slow, quick = (Hints(tool_calls=(ToolCall(name, "{}"),)) for name in ("deploy_all", "look_up"))
    for number in range(60):
        for serial, hints, seconds in ((2 * number, slow, 30.0), (2 * number + 1, quick, 0.2)):
            idle = Idle(serial, hints)
            policy.join(idle, 0.0)
            policy.leave(idle)
            policy.returned(idle, seconds)
    policy.join(Idle(1000, quick), 0.0)
    policy.join(Idle(1001, slow), 0.0)
    assert rounds(policy, 1, 0.1) == [1001]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"exponent": -1}, "exponent"),
        ({"exponent": True}, "exponent"),
        ({"rate": "mean"}, "rate"),
        ({"chunk_tokens": -1}, "chunk_tokens"),
        ({"tau_s": 0}, "tau_s"),
        ({"estimator": "gpt"}, "estimator"),
        ({"rebuild_interval": 0}, "rebuild_interval"),
        ({"predictor": "/nowhere"}, "predictor"),
    ],
)
def test_refusals_name_the_option(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Convex(**options)
