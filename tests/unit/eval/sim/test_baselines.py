"""Every baseline can be built by name, and the informed ones order as they say."""

from types import SimpleNamespace

import pytest

from eval.sim import baselines
from eval.sim.baselines import Facts, InferCept, Oracle, baseline
from sglang_agentcache.eviction import POLICIES


def idle(serial: int, name: str, since: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(serial=serial, key=SimpleNamespace(trajectory_id=name), idle_since=since)


def test_all_baselines_of_the_papers_and_every_policy_of_the_server_have_a_name():
    wanted = {
        "lru", "lru+completion", "tlru", "slru", "priority", "session-ref", "whole", "infercept", "rr",
        "rr-leaf", "rr+tiers", "oracle",
    }  # fmt: skip
    assert wanted | POLICIES.keys() <= set(baselines.names())


def test_options_follow_the_name_as_json():
    given = baseline("rr:chunk_tokens=256:tiers=on")
    assert (given.policy, given.label) == ("rr", "rr:chunk_tokens=256:tiers=on")
    assert given.options == {"chunk_tokens": 256, "tiers": "on"}


@pytest.mark.parametrize("text", ["random", "rr:chunk_tokens", ""])
def test_bad_names_and_options_are_refused(text: str):
    with pytest.raises(ValueError, match="--policies"):
        baseline(text)


def test_oracle_takes_the_one_whose_next_use_is_furthest_away():
    facts = Facts()
    facts.next_use |= {"soon": 5.0, "late": 50.0}
    policy = Oracle(facts)
    soon, late, never = idle(1, "soon"), idle(2, "late"), idle(3, "never")
    for item in (soon, late, never):
        policy.join(item, 0.0)
    assert policy.victim(1.0) is never
    policy.visited(never, 1.0)
    assert policy.victim(1.0) is never, "what has been taken changes nothing"
    policy.leave(never)
    assert policy.victim(1.0) is late
    policy.leave(late)
    policy.leave(late)
    assert policy.victim(1.0) is soon and len(policy) == 1
    policy.leave(soon)
    assert policy.victim(1.0) is None


def test_infercept_expects_the_mean_of_the_sessions_own_gaps():
    facts = Facts()
    for name, gaps in (("fast", (1.0, 3.0)), ("slow", (100.0,))):
        for gap in gaps:
            facts.returned(name, gap)
    policy = InferCept(facts)
    fast, slow, new = idle(1, "fast", 10.0), idle(2, "slow", 10.0), idle(3, "new", 10.0)
    for item in (fast, slow, new):
        policy.join(item, 10.0)
    assert policy.next_use(fast, 10.0) == 12.0
    assert policy.next_use(new, 10.0) == pytest.approx(10.0 + 104 / 3)
    assert policy.victim(11.0) is slow
    policy.leave(slow)
    assert policy.victim(11.0) is new
