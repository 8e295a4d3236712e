"""The order of RR-EVICT section 3.2, and its recency tiers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sglang_agentcache.eviction import POLICIES
from sglang_agentcache.eviction.round_robin import (
    FIRST_TIER_GAPS,
    GAPS_NEEDED,
    SHORTEST_GAP_S,
    TIER_COUNT,
    TIER_GROWTH,
    RoundRobin,
)


@dataclass(eq=False)
class Idle:
    serial: int
    idle_since: float = 0.0
    resident_tokens: int = 10
    missing_tokens: int = 0


def idle(count: int) -> list[Idle]:
    return [Idle(serial, float(serial)) for serial in range(count)]


def visits(policy: RoundRobin, count: int, now: float = 100.0) -> list[int]:
    served = []
    for _ in range(count):
        victim = policy.victim(now)
        assert victim is not None
        served.append(victim.serial)
        policy.visited(victim, now)
    return served


def tiered(gap_s: float = 1.0) -> RoundRobin:
    policy = RoundRobin("on")
    for _ in range(GAPS_NEEDED):
        policy.returned(None, gap_s)
    return policy


def test_it_is_listed_under_its_name() -> None:
    assert POLICIES["rr"] is RoundRobin


def test_each_gives_one_chunk_in_turn() -> None:
    policy = RoundRobin("off")
    for trajectory in idle(3):
        policy.join(trajectory, 0.0)
    assert visits(policy, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_who_turns_idle_joins_at_the_end_of_the_round() -> None:
    policy = RoundRobin("off")
    for trajectory in idle(3):
        policy.join(trajectory, 0.0)
    assert visits(policy, 1) == [0]
    policy.join(Idle(9), 0.0)
    assert visits(policy, 5) == [1, 2, 0, 9, 1]


def test_the_victim_stays_until_it_is_visited() -> None:
    policy = RoundRobin("off")
    for trajectory in idle(2):
        policy.join(trajectory, 0.0)
    assert policy.victim(0.0) is policy.victim(0.0)


def test_leaving_keeps_the_others_order_and_rejoining_goes_to_the_end() -> None:
    policy = RoundRobin("off")
    trajectories = idle(3)
    for trajectory in trajectories:
        policy.join(trajectory, 0.0)
    policy.leave(trajectories[0])
    assert len(policy) == 2
    policy.join(trajectories[0], 0.0)
    assert visits(policy, 4) == [1, 2, 0, 1]


def test_nobody_joined_is_no_victim() -> None:
    policy = RoundRobin()
    stranger = Idle(1)
    assert policy.victim(0.0) is None
    policy.leave(stranger)
    policy.visited(stranger, 0.0)
    assert policy.victim(0.0) is None and len(policy) == 0


def test_a_victim_as_long_as_anyone_is_joined() -> None:
    policy = tiered()
    trajectories = idle(50)
    for trajectory in trajectories:
        policy.join(trajectory, trajectory.idle_since)
    for step, trajectory in enumerate(trajectories):
        assert policy.victim(10.0**step) is not None
        assert len(policy) == 50 - step
        policy.leave(trajectory)
    assert policy.victim(1e9) is None


def test_unknown_tiers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'tiers' must be"):
        RoundRobin("sometimes")  # type: ignore[arg-type]


# ---- tiers ----


def test_long_idle_ones_go_first() -> None:
    policy = tiered(gap_s=1.0)
    stale, fresh = Idle(0, idle_since=0.0), Idle(1, idle_since=99.0)
    policy.join(stale, 0.0)
    policy.join(fresh, 99.0)
    assert visits(policy, 3, now=100.0) == [0, 0, 0]
    policy.leave(stale)
    assert visits(policy, 1, now=100.0) == [1]


def test_round_robin_inside_a_tier_and_lru_across() -> None:
    policy = tiered(gap_s=1.0)
    coldest, cold, warm = Idle(0, 0.0), [Idle(1, 80.0), Idle(2, 81.0)], [Idle(3, 99.0), Idle(4, 99.5)]
    for trajectory in (coldest, *cold, *warm):
        policy.join(trajectory, trajectory.idle_since)
    assert visits(policy, 2, now=100.0) == [0, 0]
    policy.leave(coldest)
    assert visits(policy, 4, now=100.0) == [1, 2, 1, 2]
    for trajectory in cold:
        policy.leave(trajectory)
    assert visits(policy, 3, now=100.0) == [3, 4, 3]


@pytest.mark.parametrize("tier", range(1, TIER_COUNT))
def test_a_tier_begins_where_the_constants_say(tier: int) -> None:
    """The k-th tier starts at FIRST_TIER_GAPS * TIER_GROWTH ** (k - 1) typical gaps."""
    limit = FIRST_TIER_GAPS * TIER_GROWTH ** (tier - 1)
    now = 1e6
    for age, served in ((limit * 0.999, {0, 1}), (limit * 1.001, {1})):
        policy = tiered(gap_s=1.0)
        # The peer is in the tier just warmer.
        policy.join(Idle(0, now - limit / TIER_GROWTH * 1.5 if tier > 1 else now), now)
        policy.join(Idle(1, now - age), now)
        assert set(visits(policy, 2, now)) == served


def test_auto_ends_with_the_first_completion_signal() -> None:
    policy = RoundRobin()
    for _ in range(GAPS_NEEDED):
        policy.returned(None, 1.0)
    policy.join(Idle(0, 0.0), 0.0)
    policy.join(Idle(1, 1000.0), 1000.0)
    assert policy.tiered
    assert visits(policy, 2, now=1000.0) == [0, 0]
    policy.completion_signalled()
    assert not policy.tiered


def test_on_stays_on_and_off_stays_off() -> None:
    on = tiered()
    on.completion_signalled()
    assert on.tiered
    off = RoundRobin("off")
    for _ in range(GAPS_NEEDED):
        off.returned(None, 1.0)
    assert not off.tiered


def test_one_tier_until_enough_returns_were_seen() -> None:
    policy = RoundRobin("on")
    policy.join(Idle(0, 0.0), 0.0)
    policy.join(Idle(1, 1e6), 1e6)
    for _ in range(GAPS_NEEDED - 1):
        policy.returned(None, 1.0)
    assert visits(policy, 2, now=1e6) == [0, 1]
    policy.returned(None, 1.0)
    assert visits(policy, 2, now=1e6) == [0, 0]


def test_the_typical_gap_is_a_geometric_mean_with_a_floor() -> None:
    policy = RoundRobin("on")
    for _ in range(GAPS_NEEDED):
        policy.returned(None, 0.0)
    limit = SHORTEST_GAP_S * FIRST_TIER_GAPS
    policy.join(Idle(0, 0.0), 0.0)
    policy.join(Idle(1, limit * 0.9), limit * 0.9)
    assert visits(policy, 2, now=limit * 0.99) == [0, 1]
    assert visits(policy, 2, now=limit * 1.01) == [0, 0]


def test_one_that_rejoins_late_grows_cold_by_its_own_age() -> None:
    """Parked while its tail was shared, back in the round later: its idle time counts from when it was idle."""
    policy = tiered(gap_s=1.0)
    old, young = Idle(0, idle_since=0.0), Idle(1, idle_since=99.0)
    policy.join(young, 99.0)
    policy.join(old, 0.0)
    assert visits(policy, 2, now=100.0) == [0, 0]


def test_coming_and_going_leaves_nothing_behind() -> None:
    policy = RoundRobin()
    resident, guest = Idle(0, 0.0), Idle(1)
    policy.join(resident, 0.0)
    for turn in range(10_000):
        guest.idle_since = float(turn)
        policy.join(guest, guest.idle_since)
        policy.leave(guest)
    assert sum(len(ages) for ages in policy._ages) < 100
    assert len(policy) == 1
