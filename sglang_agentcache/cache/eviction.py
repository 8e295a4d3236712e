"""Which tokens leave the cache: by eviction, and when a trajectory is complete.

Target: SGLang 0.5.23, `sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache` on either tree core.
Victim choice lives above the tree core. Everything that is not about *which FULL leaf goes next* is the
superclass: insertion, matching, locks, HiCache write-back, KV events, metrics.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace
from sglang.srt.mem_cache.base_prefix_cache import (
    DecLockRefParams,
    DecLockRefResult,
    IncLockRefResult,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId, TreePathNodeInfo
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_agentcache.config import CHUNK_TOKENS, AgentCacheConfig
from sglang_agentcache.trajectory.clock import Clock
from sglang_agentcache.trajectory.model import Branch, Trajectory
from sglang_agentcache.trajectory.table import TrajectoryTable

from .tail import TailReader

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV

FULL = ComponentType.FULL

Tracker = dict[ComponentType, int]

AHEAD = 16
"""An eviction takes from trajectories at least a chunk, or a 16th of a pool where that is less. Short ones
give a few dozen tokens each, which a decode step or two use up; an eviction's cost is mostly that of the first victim:
code and data that the forward pass has driven out of the CPU's caches."""


class Released(NamedTuple):
    """What a completion gave back, in tokens."""

    released_tokens: int
    deferred_tokens: int


class Cut(NamedTuple):
    """What one visit to a trajectory gave."""

    tokens: int
    spent: bool
    """It is known that nothing private and unlocked is left of it."""


class TailEvictingCache(UnifiedRadixCache):
    """Evicts by trajectory, given a table that says whose history ends where.

    Order of eviction, with a policy of ours: superseded branches, the policy's tail chunks of idle
    trajectories, then every other leaf in SGLang's own order except what active trajectories end at, then
    the tails of active trajectories that hold no lock (newest arrival first), then whatever is left. Trajectories
    give somewhat more than is asked for (`AHEAD`).
    With one of SGLang's own policies: SGLang's order, untouched.

    Args:
        params: SGLang's; `eviction_policy` is the order for memory that no trajectory owns.
        config: ours.
        clock: orders idle times; shared by all ranks.
    """

    all_owned_s = 1.0
    """If active trajectories prove to end at every leaf, which takes a look at each, that is believed for so long."""

    def __init__(self, params: CacheInitParams, config: AgentCacheConfig, clock: Clock) -> None:
        self.agent_config = config
        self.clock = clock
        self.policy = config.make_policy()
        if self.policy is not None:
            self.policy.start()
        self.table = TrajectoryTable(self.policy, config.max_trajectories, config.forget_after_s)
        self.stats: Counter[str] = Counter()
        self._deferred: OrderedDict[NodeId, None] = OrderedDict()
        self._tails: TailReader | None = None
        self._leaving: TreePathNodeInfo | None = None
        self._spare_active = False
        self._all_owned_until = -math.inf
        self._held_frees: list[torch.Tensor] | None = None
        super().__init__(params)
        self._tails = TailReader(self.tree_core)

    @property
    def tails(self) -> TailReader:
        assert self._tails is not None
        return self._tails

    def reset(self) -> None:
        super().reset()
        self.table.clear()
        self._deferred.clear()
        if self._tails is not None:
            self._tails.clear()

    # ---- locks: UnifiedRadixCache.inc_lock_ref / dec_lock_ref are the only way in and out ----

    def inc_lock_ref(self, node_id: NodeId, skip_lock_components: Any = ()) -> IncLockRefResult:
        result = super().inc_lock_ref(node_id, skip_lock_components)
        if self._tails is not None and not self.disable:
            self._tails.locked(node_id)
        return result

    def dec_lock_ref(
        self, node_id: NodeId, params: DecLockRefParams, skip_swa: bool = False
    ) -> DecLockRefResult:
        result = super().dec_lock_ref(node_id, params, skip_swa)
        if self._tails is not None and not self.disable and self._tails.unlocked(node_id):
            self.table.unpark(node_id)
        return result

    # ---- eviction ----

    def _evict_components(
        self,
        request_by_type: dict[ComponentType, int],
        tracker: Tracker,
        available_size_targets: dict[ComponentType, tuple[ComponentType, int]] | None = None,
        *,
        allocation_reclaim_satisfied: Callable[[], bool] | None = None,
    ) -> None:
        def by_sglang() -> None:
            super(TailEvictingCache, self)._evict_components(
                request_by_type,
                tracker,
                available_size_targets,
                allocation_reclaim_satisfied=allocation_reclaim_satisfied,
            )

        if self.policy is None:
            by_sglang()
            return

        def missing() -> int:
            """FULL tokens that the caller still lacks; the allocator's word counts where it was asked."""
            if allocation_reclaim_satisfied is not None and allocation_reclaim_satisfied():
                return 0
            if allocation_reclaim_satisfied is None and available_size_targets is not None:
                if FULL not in available_size_targets:
                    return 0
                component, size = available_size_targets[FULL]
                return size - self._component_available_size(component)
            return request_by_type[FULL] - tracker[FULL]

        already = tracker[FULL]
        self.release_deferred()
        if missing() > 0:
            with self._until_freed(missing, tracker, allocation_reclaim_satisfied) as enough:
                self._evict_superseded(enough, tracker)
                self._evict_idle(enough, tracker)
        if missing() > 0:
            self._evict_unowned(by_sglang, tracker)
        if missing() > 0:
            with self._until_freed(missing, tracker, allocation_reclaim_satisfied) as enough:
                self._evict_active(enough, tracker)
            self._counted("last_resort_tokens", tracker, by_sglang)
        self.policy.evicted(tracker[FULL] - already, self.token_to_kv_pool_allocator.size, self.clock.now())

    @property
    def _ahead(self) -> int:
        """Tokens that an eviction takes from trajectories at least, as far as they have them."""
        chunk = self.agent_config.chunk_tokens // self.page_size * self.page_size
        return min(self.token_to_kv_pool_allocator.size // AHEAD, chunk or CHUNK_TOKENS)

    @contextmanager
    def _until_freed(
        self, missing: Callable[[], int], tracker: Tracker, satisfied: Callable[[], bool] | None
    ) -> Iterator[Callable[[], bool]]:
        """Give a test of whether enough has gone; frees are batched unless the allocator must see each."""
        if satisfied is not None:
            yield lambda: missing() <= 0
            return
        goal = tracker[FULL] + max(missing(), self._ahead)
        with self._batched_frees():
            yield lambda: tracker[FULL] >= goal

    def _counted(self, name: str, tracker: Tracker, evict: Callable[[], None]) -> int:
        before = tracker[FULL]
        evict()
        freed = tracker[FULL] - before
        self.stats[name] += freed
        return freed

    @contextmanager
    def _batched_frees(self) -> Iterator[None]:
        """One allocator free for all cuts of a call: a free costs O(pool) (BaseTokenToKVPoolAllocator).

        The allocator's own free groups copy what they hold; what leaves the tree is nobody else's already.
        """
        held: list[torch.Tensor] = []
        self._held_frees = held
        try:
            yield
        finally:
            self._held_frees = None
            if held:
                self._drain_device_frees({FULL: [torch.cat(held)]})

    def _drain_device_frees(self, device_frees: dict[ComponentType, list[torch.Tensor]]) -> None:
        if self._held_frees is not None and FULL in device_frees:
            self._held_frees += device_frees.pop(FULL)
        super()._drain_device_frees(device_frees)

    def _evict_superseded(self, enough: Callable[[], bool], tracker: Tracker) -> None:
        for node in list(self.table.superseded):
            if enough():
                return
            before = tracker[FULL]
            self._drop_upward(node, tracker, enough)
            self.stats["superseded_tokens"] += tracker[FULL] - before
            if not enough() and not self.tails.is_locked(node):
                # Nothing more of it can go: what is left is shared.
                self.table.superseded.pop(node, None)

    def _evict_idle(self, enough: Callable[[], bool], tracker: Tracker) -> None:
        assert self.policy is not None
        now = self.clock.now()
        self.policy.begin_eviction(now)
        while not enough():
            victim = self.policy.victim(now)
            if victim is None:
                return
            assert isinstance(victim, Trajectory)
            cut = self._cut(victim, tracker)
            if cut.tokens:
                self.stats["tail_chunks"] += 1
                self.stats["tail_tokens"] += cut.tokens
            if cut.spent:
                self.table.park(victim, now)
            else:
                self.policy.visited(victim, now)

    def _evict_unowned(self, by_sglang: Callable[[], None], tracker: Tracker) -> None:
        """What no active trajectory ends at, in SGLang's order."""
        now = self.clock.now()
        if now < self._all_owned_until:
            return
        self._spare_active = True
        try:
            freed = self._counted("unowned_tokens", tracker, by_sglang)
        finally:
            self._spare_active = False
        if freed == 0:
            self._all_owned_until = now + self.all_owned_s

    def _evict_active(self, enough: Callable[[], bool], tracker: Tracker) -> None:
        """Last resort: tails of queued or retracted trajectories, newest arrival first."""
        for trajectory in self.table.active():
            spent = not trajectory.branches
            while not spent:
                if enough():
                    return
                tokens, spent = self._cut(trajectory, tracker)
                self.stats["active_tokens"] += tokens

    def _cut(self, trajectory: Trajectory, tracker: Tracker) -> Cut:
        """Drop one tail chunk of a trajectory, least recently extended branch first."""
        chunk = self.agent_config.chunk_tokens
        before = tracker[FULL]
        for branch in list(trajectory.branches):
            if branch.tail is None:
                continue
            for step in self.tails.free_leaves(branch.tail):
                budget = chunk - (tracker[FULL] - before) if chunk else None
                if not self.table.private_to(step.node_id, trajectory):
                    break
                goes_on = self._cut_leaf(branch, step, budget, tracker)
                if not goes_on or self.agent_config.visit == "leaf":
                    freed = tracker[FULL] - before
                    return Cut(freed, spent=freed == 0)
        freed = tracker[FULL] - before
        # Of several branches one may have been in the way of another that was looked at before it.
        return Cut(freed, spent=freed == 0 or len(trajectory.branches) <= 1)

    def _cut_leaf(self, branch: Branch, step: TreePathNodeInfo, budget: int | None, tracker: Tracker) -> bool:
        """Drop the leaf a branch ends at, or its last `budget` tokens if it is longer.

        Args:
            budget: tokens left of the chunk; None for no limit.

        Returns:
            whether the chunk goes on with the next leaf.
        """
        if budget is None or step.path_end - step.path_start <= budget:
            return self._evict_leaf(step, tracker) > 0
        # A page boundary, so that no page is freed that is half alive.
        keep = -(-(step.path_end - budget) // self.page_size) * self.page_size
        if keep == step.path_end:
            return False
        prefix = self._split(branch, keep)
        if prefix is not None:
            self.table.trimmed(branch, prefix, keep)
            suffix = replace(step, parent_id=prefix, path_start=keep, full_value_len=step.path_end - keep)
            self._evict_leaf(suffix, tracker)
        return False

    def _split(self, branch: Branch, at: int) -> NodeId | None:
        """Split the branch's tail at a page boundary; the suffix keeps the node's id (Unified*TreeCore).

        Returns:
            the node of the prefix, or None if the tree does not hold the branch up to there.
        """
        namespace = branch.trajectory.key.namespace
        # A bigram key of n units spans n + 1 tokens (EAGLE).
        key = RadixKey(
            branch.tokens,
            namespace.extra_key,
            limit=at + int(self.tree_core.is_eagle),
            cache_salt=namespace.cache_salt,
        )
        result = self.tree_core.match_prefix(MatchPrefixParams(key=key))
        self._apply_cache_actions(result.cache_actions)
        return result.last_device_node if result.device_prefix_len == at else None

    def _evict_leaf(self, step: TreePathNodeInfo, tracker: Tracker, *, back_up: bool = True) -> int:
        """Evict one free leaf as `UnifiedRadixCache._evict_components` does, write-back included.

        Returns:
            tokens freed.
        """
        before = tracker[FULL]
        self._leaving = step
        try:
            backup = self._evict_device_leaf(step.node_id, tracker)
            if backup is not None:
                if back_up and self._execute_and_commit_kv_backup(backup, write_back=True) > 0:
                    self.writing_check(write_back=True)
                    self._demote(step.node_id, tracker)
                else:
                    self._drop_subtree_no_host(step.node_id, tracker)
        finally:
            self._leaving = None
        return tracker[FULL] - before

    def _drop_upward(
        self, tail: NodeId, tracker: Tracker, enough: Callable[[], bool] | None, *, back_up: bool = True
    ) -> NodeId:
        """Evict leaf after leaf from a tail that nobody lives on, up to what others use.

        Returns:
            the node at which it stopped.
        """
        for step in self.tails.free_leaves(tail):
            if self.table.is_tail(step.node_id) or (enough is not None and enough()):
                break
            if self._evict_leaf(step, tracker, back_up=back_up) == 0:
                break
            tail = step.parent_id
        return tail

    # ---- completion ----

    def _release(self, trajectory: Trajectory) -> Released:
        """Free what only a completed trajectory owns."""
        tracker: Tracker = Counter()
        deferred = 0
        with self._batched_frees():
            for tail in self.table.forget(trajectory):
                stopped_at = self._drop_upward(tail, tracker, None, back_up=False)
                if self.tails.is_locked(stopped_at) and not self.table.is_tail(stopped_at):
                    self._deferred[stopped_at] = None
                    if stopped_at == tail:
                        last = self.tails.path(tail)[-1]
                        deferred += last.path_end - last.path_start
        self.stats["released_tokens"] += tracker[FULL]
        return Released(tracker[FULL], deferred)

    def release_deferred(self) -> None:
        """Free the completed tails that are no longer locked."""
        if not self._deferred:
            return
        tracker: Tracker = Counter()
        with self._batched_frees():
            for tail in list(self._deferred):
                if self.tails.is_locked(tail):
                    continue
                del self._deferred[tail]
                self._drop_upward(tail, tracker, None, back_up=False)
        self.stats["released_tokens"] += tracker[FULL]

    # ---- every way a FULL leaf leaves the device: keep the tails right ----

    def _evict_device_next_node(
        self, component_type: ComponentType, tracker: Tracker
    ) -> tuple[NodeId | None, bool]:
        while True:
            node_id, made_progress = super()._evict_device_next_node(component_type, tracker)
            if node_id is None or not self._spare_active or not self.table.spared(node_id):
                return node_id, made_progress

    def _evict_device_leaf(self, node_id: NodeId, tracker: Tracker) -> BackupKV | None:
        step = self._step_of(node_id)
        backup = super()._evict_device_leaf(node_id, tracker)
        if backup is None:
            self._left_device(step)
        return backup

    def _demote(self, node_id: NodeId, tracker: Tracker) -> None:
        step = self._step_of(node_id)
        super()._demote(node_id, tracker)
        self._left_device(step)

    def _drop_subtree_no_host(self, node_id: NodeId, tracker: Tracker) -> bool:
        step = self._step_of(node_id)
        dropped = super()._drop_subtree_no_host(node_id, tracker)
        if dropped:
            self._left_device(step)
        return dropped

    def _step_of(self, node_id: NodeId) -> TreePathNodeInfo | None:
        if self._leaving is not None and self._leaving.node_id == node_id:
            return self._leaving
        if self.policy is None and not self.tree_core.enable_hicache and not self.table.knows(node_id):
            return None
        path = self.tails.path(node_id)
        return path[-1] if path else None

    def _left_device(self, step: TreePathNodeInfo | None) -> None:
        if step is None:
            return
        self.tails.demoted(step)
        parent = step.parent_id if step.path_start > 0 else None
        self.table.evicted(step.node_id, parent, step.path_start, self.clock.now())
