"""Which trajectories exist, what each is doing, and where each one's resident history ends.

The table knows the radix tree only as opaque node ids. Its one structural fact: a trajectory's resident
history is a root-to-node path, so it is described by the node it ends at, its *tail*. A leaf is private to
a trajectory exactly if no other trajectory's tail is there; that is all the ownership a tail cut needs.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sglang_agentcache.eviction.base import EvictionPolicy

from .identity import Namespace, TrajectoryKey
from .model import ANONYMOUS, PROBE_TOKENS, Branch, NodeId, PathNode, State, Trajectory


class TrajectoryTable:
    """All trajectories of one cache, and the policy's view of the idle ones.

    Args:
        policy: told of every trajectory that turns idle or stops being idle; None orders nothing.
        max_trajectories: the table never holds more; beyond it the longest idle one is forgotten.
        forget_after_s: an idle trajectory with nothing resident is forgotten after this many seconds.

    A key belongs to at most one live trajectory. A request of a completed one starts a new trajectory
    under the same key.
    """

    def __init__(self, policy: EvictionPolicy | None, max_trajectories: int, forget_after_s: float) -> None:
        self.policy = policy
        self.on_return: list[Callable[[Trajectory, float], None]] = []
        """Told of each trajectory that comes back, with its idle seconds, while its hints are still the old ones."""
        self.on_abandoned: Callable[[Trajectory, float], None] | None = None
        """Told of every trajectory that is completed while it is idle, with its idle seconds so far."""
        self.max_trajectories = max_trajectories
        self.forget_after_s = forget_after_s
        self._next_serial = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a cache flush; requests in flight stay known."""
        active: dict[str, Trajectory] = getattr(self, "_by_request", {})
        if self.policy is not None:
            for trajectory in getattr(self, "_idle", {}).values():
                self.policy.leave(trajectory)
        self._by_request: dict[str, Trajectory] = active
        self._by_key: dict[TrajectoryKey, Trajectory] = {}
        self._idle: OrderedDict[int, Trajectory] = OrderedDict()
        self._quiet: OrderedDict[int, Trajectory] = OrderedDict()
        # Branches by node; dicts for their order and fast removal: a common prefix has very many.
        self._tails: dict[NodeId, dict[Branch, None]] = {}
        self._prompts: dict[NodeId, dict[Branch, None]] = {}
        self.superseded: OrderedDict[NodeId, Trajectory] = OrderedDict()
        for trajectory in active.values():
            trajectory.branches.clear()
            if not trajectory.closing:
                self._by_key[trajectory.key] = trajectory

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: TrajectoryKey) -> Trajectory | None:
        return self._by_key.get(key)

    def of_session(self, session_id: str) -> list[Trajectory]:
        """Trajectories that requests with this SGLang session id belong to; O(trajectories)."""
        return [
            trajectory
            for key, trajectory in self._by_key.items()
            if key.trajectory_id == session_id and trajectory.source == "session_id"
        ]

    def of_request(self, rid: str) -> Trajectory | None:
        return self._by_request.get(rid)

    def states(self) -> Counter[str]:
        """Number of trajectories by state."""
        counts = Counter({state.value: 0 for state in State})
        counts.update(trajectory.state.value for trajectory in self._by_key.values())
        return counts

    def idle(self) -> Iterable[Trajectory]:
        """All idle trajectories, longest idle first."""
        return self._idle.values()

    def latest_idle(self) -> Iterator[Trajectory]:
        """All idle trajectories, shortest idle first."""
        return reversed(self._idle.values())

    def requests_in_flight(self) -> list[str]:
        return list(self._by_request)

    def active(self) -> list[Trajectory]:
        """Trajectories with requests in flight, the one with the newest arrival first."""
        return list(dict.fromkeys(reversed(self._by_request.values())))

    # ---- a request's life ----

    def begin(
        self,
        key: TrajectoryKey | None,
        rid: str,
        now: float,
        *,
        namespace: Namespace,
        source: str = "unknown",
        hints: Any = None,
    ) -> Trajectory:
        """A request has entered the queue: its trajectory is active from here until `end`.

        Beginning a known request again (a retracted one re-enters the queue) changes nothing.
        """
        known = self._by_request.get(rid)
        if known is not None:
            return known
        self._next_serial += 1
        if key is None:
            key = TrajectoryKey(namespace, f"{ANONYMOUS}{self._next_serial}")
        trajectory = self._by_key.get(key)
        if trajectory is None:
            self._make_room(now)
            trajectory = Trajectory(key, self._next_serial, source)
            self._by_key[key] = trajectory
        if not trajectory.requests and self._leave_idle(trajectory):
            idle_s = now - trajectory.idle_since
            if self.policy is not None:
                self.policy.returned(trajectory, idle_s)
            for tell in self.on_return:
                tell(trajectory, idle_s)
        trajectory.requests[rid] = self._next_serial
        if hints is not None:
            trajectory.hints = hints
        self._by_request[rid] = trajectory
        return trajectory

    def lineage(self, node: NodeId, matched: int, tokens: Sequence[int]) -> Trajectory | None:
        """The one idle trajectory that a request without an id continues, or None.

        Args:
            node: the deepest resident node on the request's path.
            matched: resident tokens of the request, from the root.
            tokens: the request's token ids.
        """
        found: set[int] = set()
        match: Trajectory | None = None
        for branch in (*self._tails.get(node, ()), *self._prompts.get(node, ())):
            trajectory = branch.trajectory
            if trajectory.requests or branch is not trajectory.branches[-1]:
                continue
            if matched < min(branch.prompt_end, branch.resident_tokens):
                continue
            start = branch.prompt_tokens - len(branch.probe)
            if len(tokens) <= branch.prompt_tokens or tokens[start : branch.prompt_tokens] != branch.probe:
                continue
            if trajectory.serial not in found:
                found.add(trajectory.serial)
                match = trajectory
        return match if len(found) == 1 else None

    def extend(
        self,
        trajectory: Trajectory,
        rid: str,
        path: Sequence[PathNode],
        *,
        prompt: Sequence[int],
        history_tokens: int,
        tokens: array[int],
        shared_with: Callable[[NodeId], int],
        rewrites: bool = True,
    ) -> None:
        """A request's history is in the tree and ends at `path[-1]`.

        Args:
            path: root to tail, without the root; not empty.
            prompt: token ids of the request's prompt, with which the history begins.
            history_tokens: prompt and output.
            tokens: token ids of the resident history.
            shared_with: tokens that the path to another node has in common with this one.
            rewrites: False for an aborted request, which says nothing about the rest of the history.
        """
        arrival = trajectory.requests.get(rid, self._next_serial)
        on_path = {entry.node: entry.end for entry in path}
        for node in on_path.keys() & self.superseded.keys():
            # Left for good, it was said, and here it is again: this trajectory goes back and forth.
            self.superseded.pop(node).interleaves = True
        continued: Branch | None = None
        for branch in list(trajectory.branches):
            if branch.tail is None or branch.tail in on_path:
                if continued is None:
                    continued = branch
                else:
                    self._drop_branch(branch)
            elif (
                rewrites
                and branch.touched < arrival
                and not trajectory.interleaves
                and self.policy is not None
                and shared_with(branch.tail) > 0
            ):
                tail = branch.tail
                self._drop_branch(branch)
                self.superseded[tail] = trajectory
        if continued is None and trajectory.branches and not rewrites:
            return
        self._next_serial += 1
        if continued is None:
            continued = Branch(trajectory, self._next_serial)
        else:
            self._unlink(continued)
            trajectory.branches.remove(continued)
        continued.touched = self._next_serial
        continued.tail = path[-1].node
        continued.resident_tokens = path[-1].end
        continued.history_tokens = max(
            history_tokens, path[-1].end, 0 if rewrites else continued.history_tokens
        )
        continued.tokens, continued.trimmed = tokens, False
        continued.prompt_tokens = len(prompt)
        continued.probe = array("q", prompt[-PROBE_TOKENS:])
        # What a continuation must hit: all that is resident, or if that is more, the prompt.
        continued.prompt_node, continued.prompt_end = None, path[-1].end
        for entry in path:
            if entry.end <= len(prompt):
                continued.prompt_node, continued.prompt_end = entry.node, entry.end
        trajectory.branches.append(continued)
        self._link(continued)

    def end(self, rid: str, now: float) -> Trajectory | None:
        """A request has left the server, by whatever way.

        Returns:
            its trajectory if that was its last request, else None. A closing one must then be released.
        """
        trajectory = self._by_request.pop(rid, None)
        if trajectory is None:
            return None
        del trajectory.requests[rid]
        if trajectory.requests:
            return None
        if not trajectory.closing:
            self._turn_idle(trajectory, now)
        return trajectory

    def refine(
        self, trajectory: Trajectory, since: float, *, hints: Any, prompt_tokens: int, output_tokens: int
    ) -> None:
        """An idle trajectory's last request was finished by another server, at `since`; it waits from then on.

        Args:
            hints: what it waits for.
            prompt_tokens: of that request.
            output_tokens: what it generated. A return has to prefill them, so they are missing from the start.
        """
        trajectory.hints, trajectory.idle_since = hints, since
        if trajectory.serial in self._idle:
            self._idle.move_to_end(trajectory.serial)
        branch = trajectory.branches[-1] if trajectory.branches else None
        if branch is not None and branch.prompt_tokens == prompt_tokens:
            branch.history_tokens = max(branch.history_tokens, prompt_tokens + output_tokens)
        if self.policy is not None:
            self.policy.refined(trajectory, since)

    def close(self, trajectory: Trajectory, now: float) -> bool:
        """No request will follow the ones in flight; a late one starts a new trajectory.

        Returns:
            True if it can be released now, False if a request is still in flight.
        """
        if self._by_key.get(trajectory.key) is trajectory:
            del self._by_key[trajectory.key]
        trajectory.closing = True
        if self._leave_idle(trajectory) and self.on_abandoned is not None:
            self.on_abandoned(trajectory, now - trajectory.idle_since)
        return not trajectory.requests

    def forget(self, trajectory: Trajectory) -> list[NodeId]:
        """Take a trajectory out of the table.

        Returns:
            the tails it had and the branches it superseded, deepest history first to release.
        """
        if self._by_key.get(trajectory.key) is trajectory:
            del self._by_key[trajectory.key]
        self._leave_idle(trajectory)
        tails = [branch.tail for branch in reversed(trajectory.branches) if branch.tail is not None]
        for branch in list(trajectory.branches):
            self._drop_branch(branch)
        for node in [node for node, owner in self.superseded.items() if owner is trajectory]:
            del self.superseded[node]
            tails.append(node)
        return tails

    # ---- what the cache reports about the tree ----

    def is_tail(self, node: NodeId) -> bool:
        return node in self._tails

    def knows(self, node: NodeId) -> bool:
        """Whether anything here would have to change if this leaf left the device."""
        return node in self._tails or node in self._prompts or node in self.superseded

    def branches_at(self, node: NodeId) -> Sequence[Branch]:
        return tuple(self._tails.get(node, ()))

    def private_to(self, node: NodeId, trajectory: Trajectory) -> bool:
        """Whether no other trajectory's resident history ends at this leaf."""
        return all(branch.trajectory is trajectory for branch in self._tails.get(node, ()))

    def spared(self, node: NodeId) -> bool:
        """Whether an active trajectory's resident history ends at this leaf."""
        return any(branch.trajectory.requests for branch in self._tails.get(node, ()))

    def evicted(self, node: NodeId, parent: NodeId | None, resident_tokens: int, now: float) -> None:
        """A leaf has left the device: the histories that ended there now end at its parent.

        Args:
            parent: None if the parent is the root.
            resident_tokens: the parent's offset from the root.
        """
        for branch in self._tails.pop(node, ()):
            branch.tail = parent
            branch.resident_tokens = resident_tokens
            branch.trimmed = True
            branch.forget_tokens()
            if parent is not None:
                self._tails.setdefault(parent, {})[branch] = None
            trajectory = branch.trajectory
            if parent is None and not trajectory.requests:
                self._turn_quiet(trajectory, now)
        for branch in self._prompts.pop(node, ()):
            branch.prompt_node = None
        trajectory_left = self.superseded.pop(node, None)
        if trajectory_left is not None and parent is not None and not self.is_tail(parent):
            self.superseded[parent] = trajectory_left
            self.superseded.move_to_end(parent, last=False)
        if parent is not None:
            self.unpark(parent)

    def trimmed(self, branch: Branch, node: NodeId, resident_tokens: int) -> None:
        """A branch's tail has been split: its resident history is about to end at `node`."""
        self._unlink(branch)
        branch.tail, branch.resident_tokens, branch.trimmed = node, resident_tokens, True
        branch.forget_tokens()
        self._link(branch)

    def park(self, trajectory: Trajectory, now: float) -> None:
        """An idle trajectory has nothing private to give; it rejoins the order when it has again.

        One that was trimmed down to what others use too is as quiet as one of which nothing is resident, which
        `evicted` has made so: a common prefix would otherwise keep every trajectory that ever began with it.
        """
        if self.policy is not None:
            self.policy.leave(trajectory)
        if all(branch.tail is None for branch in trajectory.branches):
            return
        trajectory.parked = True
        if all(branch.trimmed for branch in trajectory.branches):
            self._quiet[trajectory.serial] = trajectory
            self._purge_quiet(now)

    def unpark(self, node: NodeId) -> None:
        """What kept the trajectories that end here from giving their tails may have gone: they rejoin.

        Told when another tail leaves the node, its last child is evicted, or its last lock is returned.
        """
        branch = next(iter(self._tails.get(node, ())), None)
        if branch is None:
            return
        trajectory = branch.trajectory
        if trajectory.parked and not trajectory.requests and self.private_to(node, trajectory):
            trajectory.parked = False
            self._quiet.pop(trajectory.serial, None)
            if self.policy is not None:
                self.policy.join(trajectory, trajectory.idle_since)

    # ---- inside ----

    def _turn_idle(self, trajectory: Trajectory, now: float) -> None:
        trajectory.idle_since = now
        trajectory.parked = False
        self._idle[trajectory.serial] = trajectory
        if any(branch.tail is not None for branch in trajectory.branches):
            if self.policy is not None:
                self.policy.join(trajectory, now)
        else:
            self._turn_quiet(trajectory, now)

    def _leave_idle(self, trajectory: Trajectory) -> bool:
        self._quiet.pop(trajectory.serial, None)
        if self._idle.pop(trajectory.serial, None) is None:
            return False
        trajectory.parked = False
        if self.policy is not None:
            self.policy.leave(trajectory)
        return True

    def _turn_quiet(self, trajectory: Trajectory, now: float) -> None:
        """Nothing of an idle trajectory is resident."""
        if any(branch.tail is not None for branch in trajectory.branches):
            return
        if trajectory.key.trajectory_id.startswith(ANONYMOUS):
            self.forget(trajectory)
            return
        if self.policy is not None:
            self.policy.leave(trajectory)
        self._quiet[trajectory.serial] = trajectory
        self._purge_quiet(now)

    def _purge_quiet(self, now: float) -> None:
        while self._quiet:
            oldest = next(iter(self._quiet.values()))
            if now - oldest.idle_since <= self.forget_after_s:
                return
            self.forget(oldest)

    def _make_room(self, now: float) -> None:
        self._purge_quiet(now)
        while len(self._by_key) >= self.max_trajectories and self._idle:
            self.forget(next(iter((self._quiet or self._idle).values())))

    def _link(self, branch: Branch) -> None:
        if branch.tail is not None:
            self._tails.setdefault(branch.tail, {})[branch] = None
        if branch.prompt_node is not None and branch.prompt_node != branch.tail:
            self._prompts.setdefault(branch.prompt_node, {})[branch] = None

    def _unlink(self, branch: Branch) -> None:
        for index, node in ((self._tails, branch.tail), (self._prompts, branch.prompt_node)):
            if node is None:
                continue
            at_node = index.get(node, {})
            if branch in at_node:
                del at_node[branch]
                if not at_node:
                    del index[node]
        if branch.tail is not None:
            self.unpark(branch.tail)

    def _drop_branch(self, branch: Branch) -> None:
        self._unlink(branch)
        branch.trajectory.branches.remove(branch)
