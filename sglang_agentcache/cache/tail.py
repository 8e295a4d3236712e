"""Reading a trajectory's tail off SGLang's radix tree, and knowing when a leaf may be cut.

Works on any tree core (SGLang 0.5.23: Rust or Python) through `UnifiedTreeCoreInterface` alone.
`evict_device_leaf` on a node that is locked or is no device leaf panics the Rust core and takes the
scheduler with it, so every cut is preceded by these checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import (
    NodeId,
    TreePathNodeInfo,
    UnifiedTreeCoreInterface,
)

SWEEP_AT_LEAST = 1024
"""Entries about host-only children before those of vanished nodes are looked for."""


class TailReader:
    """Paths, locks and leaves of one tree core.

    Locks enter and leave a tree through `UnifiedRadixCache.inc_lock_ref` / `dec_lock_ref`, anchored at a node
    and covering the path to the root. A leaf is therefore locked exactly if a lock is anchored at it; with a
    host tier also if one is anchored at a host-only node below it (a load-back in flight).
    """

    def __init__(self, core: UnifiedTreeCoreInterface) -> None:
        self._core = core
        self._anchors: Counter[NodeId] = Counter()
        self._host_anchors: Counter[NodeId] = Counter()
        self._demoted: dict[NodeId, set[NodeId]] = {}
        self._sweep_at = SWEEP_AT_LEAST

    def clear(self) -> None:
        """The tree has been reset."""
        self._anchors.clear()
        self._host_anchors.clear()
        self._demoted.clear()

    # ---- locks ----

    def locked(self, node: NodeId) -> None:
        """A lock has been anchored at `node`."""
        self._anchors[node] += 1
        if not self._core.enable_hicache or self._core.is_root(node):
            return
        if self._core.is_full_device_evicted(node) or node in self._host_anchors:
            self._host_anchors[node] += 1

    def unlocked(self, node: NodeId) -> bool:
        """A lock anchored at `node` has been returned. Returns whether that was the last one there."""
        for counts in (self._anchors, self._host_anchors):
            if node in counts:
                counts[node] -= 1
                if counts[node] <= 0:
                    del counts[node]
        return node not in self._anchors

    def is_locked(self, node: NodeId) -> bool:
        """Whether a lock covers this leaf."""
        if node in self._anchors:
            return True
        return any(node == step.node_id for anchor in self._host_anchors for step in self.path(anchor))

    # ---- paths ----

    def path(self, node: NodeId) -> tuple[TreePathNodeInfo, ...]:
        """Root-to-node path without the root; empty if the node is gone."""
        try:
            return self._core.collect_path_info([node])[0]
        except KeyError:
            return ()

    def common_tokens(self, node: NodeId, path: tuple[TreePathNodeInfo, ...]) -> int:
        """Tokens that the path to `node` shares with another path."""
        ends = {step.node_id: step.path_end for step in path}
        return max((ends.get(step.node_id, 0) for step in self.path(node)), default=0)

    def free_leaves(self, tail: NodeId) -> Iterator[TreePathNodeInfo]:
        """From `tail` towards the root, the nodes that are unlocked device leaves.

        The consumer evicts each one before it asks for the next; what follows is its parent, if that is
        a leaf by then.
        """
        path = self.path(tail)
        index = len(path) - 1
        evicted_children = 0
        while index >= 0:
            step = path[index]
            if not self._is_free_leaf(step, evicted_children):
                return
            yield step
            index -= 1
            evicted_children = 1
            if self._core.enable_hicache and index >= 0:
                # An evicted leaf may stay below its parent as a host-only child: count afresh.
                path = self.path(path[index].node_id)
                index, evicted_children = len(path) - 1, 0

    def demoted(self, step: TreePathNodeInfo) -> None:
        """With a host tier: this leaf has left the device and may live on as a host-only child."""
        if self._core.enable_hicache:
            self._demoted.setdefault(step.parent_id, set()).add(step.node_id)
            if len(self._demoted) > self._sweep_at:
                for parent in list(self._demoted):
                    self._host_only_children(parent)
                self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._demoted))

    def _is_free_leaf(self, step: TreePathNodeInfo, evicted_children: int) -> bool:
        if step.full_value_len is None or self.is_locked(step.node_id):
            return False
        children = step.num_children - evicted_children
        return children == 0 or children == self._host_only_children(step.node_id)

    def _host_only_children(self, node: NodeId) -> int:
        """Children known to be host-only. An unknown child counts as resident: then nothing is cut."""
        known = self._demoted.get(node)
        if not known:
            return 0
        for child in list(known):
            path = self.path(child)
            if not path or path[-1].parent_id != node or path[-1].full_value_len is not None:
                known.discard(child)
        if not known:
            del self._demoted[node]
        return len(known)
