"""Random requests, tools and evictions under the policies that predict, on both tree cores.

`test_cache_machine.py` follows every token, but knows only the order of `rr`. Here the order is checked against a
naive minimum, and else only what holds under every order. `AGENTCACHE_STATE_MACHINE_OPS` sets the operations.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglang.srt.managers.schedule_batch import Req

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.eviction.base import EvictionPolicy
from sglang_agentcache.eviction.ranked import SCORE_BITS, RankedPolicy
from sglang_agentcache.serving.hints import KEY
from sglang_agentcache.trajectory.clock import Clock
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.model import State, Trajectory
from tests.support.serving import CORES, Server

STEPS = 50
OPERATIONS = int(os.environ.get("AGENTCACHE_STATE_MACHINE_OPS", "1000"))
CAPACITY_PAGES = 60
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
NAMESPACE = Namespace(None, None)
CALLS: tuple[list[dict[str, Any]] | None, ...] = (
    None,
    [],
    [{"name": "Bash", "arguments": {"command": "ls"}}],
    [{"name": "Bash", "arguments": {"command": "sleep 60"}}],
    [{"name": "Read", "arguments": {"file_path": "a.txt"}}, {"name": "made_up", "arguments": "{"}],
)

seeds = st.integers(0, 2**16)


class Watch:
    """Stands between the cache and its policy: checks each victim when it is named and when it was cut."""

    def __init__(self, policy: RankedPolicy, chunk: int, page_size: int, cache: Any) -> None:
        self.policy, self.chunk, self.page_size, self.cache = policy, chunk, page_size, cache
        self.victims = 0
        self._resident: dict[int, int] = {}
        self._size = 0
        for name in ("victim", "visited"):
            setattr(self, f"_{name}", getattr(policy, name))
            setattr(policy, name, getattr(self, name))

    def victim(self, now: float) -> Trajectory | None:
        found: Trajectory | None = self._victim(now)  # type: ignore[attr-defined]
        joined = list(self.policy._joined.values())
        assert (found is None) == (not joined), "as long as any is joined, one is named"
        if found is None:
            return None
        assert found.state is State.IDLE and self.policy._joined[found.serial] is found
        if self.policy.rebuild_interval == 1 and not self.policy.fresh_tokens:
            assert self.no_dearer_than_others(found, joined, now)
        self.victims += 1
        self._resident, self._size = self.resident(), self.cache.total_size()[0]
        return found

    def no_dearer_than_others(self, found: Trajectory, joined: list[Any], now: float) -> bool:
        """Up to what the ranking rounds off; among those the older one goes, as unit tests show."""
        elapsed = np.array([now - item.idle_since for item in joined])
        scores = self.policy.scores(joined, self.policy.urgencies(joined, elapsed))
        least = float(scores.min())
        return float(scores[joined.index(found)]) <= least + abs(least) * 2.0 ** (1 - SCORE_BITS)

    def visited(self, victim: Trajectory, now: float) -> None:
        after = self.resident()
        lost = {serial: count - after[serial] for serial, count in self._resident.items() if serial in after}
        del lost[victim.serial]
        assert not any(lost.values()), "a cut took what others share"
        # Of the tree: branches of one trajectory may share what is cut.
        cut = self._size - self.cache.total_size()[0]
        assert cut > 0 and cut % self.page_size == 0
        assert not self.chunk or cut <= self.chunk
        self._visited(victim, now)  # type: ignore[attr-defined]

    def resident(self) -> dict[int, int]:
        return {
            item.serial: sum(branch.resident_tokens for branch in item.branches)
            for item in self.cache.table._by_key.values()
        }


class RankedMachine(RuleBasedStateMachine):
    core = "python"
    policy_name = "convex"

    @initialize(
        seed=seeds,
        chunk=st.sampled_from((0, 1, 3)),
        interval=st.sampled_from((1, 1, 3)),
        fresh_pages=st.sampled_from((0, 0, 4)),
        page_size=st.sampled_from((1, 16)),
    )
    def start(self, seed: int, chunk: int, interval: int, fresh_pages: int, page_size: int) -> None:
        self.now = 0.0
        self.page_size = page_size
        options = {"chunk_tokens": chunk * page_size, "rebuild_interval": interval}
        config = AgentCacheConfig.parse(self.policy_name, options, page_size)
        clock = Clock(source=lambda: self.now)
        self.server = Server(self.core, page_size, CAPACITY_PAGES * page_size, config, clock=clock)
        policy: EvictionPolicy | None = self.server.cache.policy
        assert isinstance(policy, RankedPolicy)
        policy.fresh_tokens = fresh_pages * page_size
        self.watch = Watch(policy, chunk * page_size, page_size, self.server.cache)
        self.running: list[Req] = []
        self.queued: list[Req] = []
        self.histories: dict[str, list[int]] = {}
        self.count = 0
        for number, name in enumerate(NAMES):  # enough to choose from, and some of them alike
            self.turn(name, seed + 5 * number, (seed + number // 2) % len(CALLS), None, 1)

    def words(self, seed: int) -> list[int]:
        """Few different tokens in runs, so that histories share prefixes now and then."""
        tokens: list[int] = []
        for turn in range(1 + seed % 3):
            tokens += [1 + (seed // 3 + turn) % 3] * (
                1 + (seed * 7919 + turn * 104729) % (4 * self.page_size)
            )
        return tokens

    def arrive(self, name: str, seed: int, calls: int, idle_s: float | None) -> Req:
        self.count += 1
        most = (CAPACITY_PAGES // 3) * self.page_size
        tokens = (self.histories.get(name, []) + self.words(seed))[:most]
        req = self.server.request(f"r{self.count}", tokens, trajectory=name, output_tokens=1 + seed % 3)
        hints = req.sampling_params.custom_params[KEY]
        if CALLS[calls] is not None:
            hints["tool_calls"] = CALLS[calls]
        if idle_s is not None:
            hints["expected_idle_s"] = idle_s
        self.server.arrive(req)
        return req

    def advance(self, req: Req, token: int) -> None:
        """The next step of a running request; without room it is dropped."""
        if not req.output_ids:
            self.server.first_token(req, token)
        elif not self.server.decode(req, token):
            self.server.abort_running(req)
        if req.finished():
            self.running.remove(req)
            name = req.sampling_params.custom_params[KEY]["trajectory_id"]
            self.histories[name] = list(req.origin_input_ids) + list(req.output_ids)

    # ---- what happens ----

    @rule(
        name=st.sampled_from(NAMES),
        seed=seeds,
        calls=st.integers(0, len(CALLS) - 1),
        idle_s=st.sampled_from((None, None, 0.0, 5.0, 50.0)),
        whole=st.integers(0, 3),
    )
    def turn(self, name: str, seed: int, calls: int, idle_s: float | None, whole: int) -> None:
        """A request; mostly it runs to its end at once."""
        req = self.arrive(name, seed, calls, idle_s)
        if not self.server.admit(req):
            self.queued.append(req)
            return
        self.running.append(req)
        while whole and req in self.running:
            self.advance(req, 1 + seed % 3)

    @precondition(lambda self: self.queued)
    @rule()
    def admit(self) -> None:
        if self.server.admit(self.queued[0]):
            self.running.append(self.queued.pop(0))

    @precondition(lambda self: self.queued)
    @rule()
    def abort_queued(self) -> None:
        self.server.abort_queued(self.queued.pop())

    @precondition(lambda self: self.running)
    @rule(pick=seeds, token=st.integers(1, 3))
    def run(self, pick: int, token: int) -> None:
        self.advance(self.running[pick % len(self.running)], token)

    @rule(seconds=st.sampled_from((0.01, 0.5, 3.0, 40.0, 900.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(pages=st.integers(1, CAPACITY_PAGES // 2))
    def evict(self, pages: int) -> None:
        """Idle histories go before those of requests that are queued or running."""
        wanted = pages * self.page_size
        table = self.server.cache.table
        active = [item for item in table._by_key.values() if item.state is State.ACTIVE]
        before = sum(item.resident_tokens for item in active)
        free = self.server.cache.evictable_size()
        evicted = self.server.evict(wanted)
        assert evicted >= min(wanted, free)
        if sum(item.resident_tokens for item in active) < before:
            assert len(self.watch.policy) == 0, (
                "an active history was cut while idle ones had something to give"
            )

    @rule(name=st.sampled_from(NAMES))
    def complete(self, name: str) -> None:
        if self.server.cache.complete(TrajectoryKey(NAMESPACE, name)) is not None:
            self.histories.pop(name, None)

    # ---- always ----

    @invariant()
    def holds(self) -> None:
        self.server.check_pool(self.running)
        for tokens in self.histories.values():
            self.server.check_contents(tokens)
        joined = self.watch.policy._joined
        idle = [item for item in self.server.cache.table._by_key.values() if item.state is State.IDLE]
        assert {item.serial for item in joined.values()} <= {item.serial for item in idle}
        for item in idle:
            assert item.serial in joined or item.parked or not item.resident_tokens


@pytest.mark.parametrize("policy", ["predictive", "convex"])
@pytest.mark.parametrize("core", CORES)
def test_predicting_policies_keep_the_cache_whole(core: str, policy: str) -> None:
    victims = 0

    class Machine(RankedMachine):
        def teardown(self) -> None:
            nonlocal victims
            if hasattr(self, "watch"):
                self.evict(CAPACITY_PAGES)
                victims += self.watch.victims

    Machine.core, Machine.policy_name = core, policy
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(1, OPERATIONS // STEPS),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            report_multiple_bugs=False,
        ),
    )
    assert victims > OPERATIONS // 10, "hardly anything was evicted"
