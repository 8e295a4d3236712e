"""AgentRadixCache: SGLang's unified radix cache, told by each request which trajectory it belongs to."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, CacheRequestOutcome
from sglang.srt.mem_cache.radix_cache import RadixKey

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory import identity
from sglang_agentcache.trajectory.clock import Clock
from sglang_agentcache.trajectory.model import PathNode, Trajectory

from .eviction import Released, TailEvictingCache

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    from sglang_agentcache.predictor.tool_calls import ToolCall

WEAK_SOURCES = frozenset({"header", "prompt-cache-key", "anthropic-user"})
"""Ids that clients send for other purposes too (`serving.carriers`)."""


class AgentRadixCache(TailEvictingCache):
    """A radix cache that knows trajectories: from the queue (`request_arrived`) to the end of each request.

    Args: as `TailEvictingCache`.
    """

    def __init__(self, params: CacheInitParams, config: AgentCacheConfig, clock: Clock) -> None:
        self.tool_calls_of: Callable[[Req], tuple[ToolCall, ...] | None] | None = None
        """Reads the tool calls off a finished request's output; None: only what clients declare is known."""
        self.on_finished: Callable[[Req, Trajectory], None] | None = None
        """Told of every request that finishes with KV, while its trajectory is still active."""
        self._final_requests: set[str] = set()
        self._in_flight: dict[str, Req] = {}
        super().__init__(params, config, clock)

    @property
    def host_tokens(self) -> int:
        """KV slots of the host tier (0.5.23: `full_kv_pool_host`, set by `init_hicache`); 0 without one."""
        host = getattr(self, "full_kv_pool_host", None)
        return 0 if host is None else int(host.logical_size)

    # ---- a request's life ----

    def request_arrived(self, req: Req) -> None:
        """A request enters a queue (again, if it was retracted): its trajectory is active from now on."""
        if self.disable or self.table.of_request(req.rid) is not None:
            return
        found = identity.resolve(
            req.sampling_params.custom_params, req.session_id, req.kv_hints, req.extra_key, req.cache_salt
        )
        now = self.clock.now()
        key, source = found.key, found.source
        earlier = self._continued_by(req) if key is None or source in WEAK_SOURCES else None
        if key is None or (source in WEAK_SOURCES and self._contradicts(key, earlier)):
            source = "lineage"
            key = earlier.key if earlier is not None else None
        self.table.begin(
            key,
            req.rid,
            now,
            namespace=identity.Namespace(req.extra_key, req.cache_salt),
            source=source,
            hints=found.hints,
        )
        self._in_flight[req.rid] = req
        self.stats[f"requests_by_source.{source}"] += 1
        for said in found.hints.said():
            self.stats[f"hints.request.{said}"] += 1
        # Parallel sampling sends a copy ahead that only warms the prefix, with the same hints.
        if found.hints.final and req.sampling_params.max_new_tokens != 0:
            self._final_requests.add(req.rid)

    def request_left(self, rid: str) -> None:
        """A request has left the server, finished or not. Harmless if it is unknown or left before.

        SGLang announces the abort of a request that is being prefilled before it releases its KV: until
        `on_release` the request counts as there.
        """
        req = self._in_flight.get(rid)
        if req is not None and not req.kv.holds_kv:
            self._leave(rid)

    def _leave(self, rid: str) -> None:
        self._in_flight.pop(rid, None)
        trajectory = self.table.of_request(rid)
        if trajectory is None:
            return
        if rid in self._final_requests:
            self._final_requests.discard(rid)
            self._signal_completion(trajectory)
        last = self.table.end(rid, self.clock.now())
        if last is not None and last.closing:
            self._release(last)
        self.release_deferred()

    def finish(self, handle: CacheRequestHandle, outcome: CacheRequestOutcome) -> None:
        super().finish(handle, outcome)
        self.request_left(handle.rid)

    def on_release(self, req: Req, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        trajectory = self.table.of_request(req.rid)
        if trajectory is None or self._in_flight.get(req.rid) != req:
            return
        self._record(trajectory, req)
        if req.finished():
            if self.on_finished is not None:
                self.on_finished(req, trajectory)
            self._note_tool_calls(trajectory, req)
            self._leave(req.rid)

    def _note_tool_calls(self, trajectory: Trajectory, req: Req) -> None:
        """What the trajectory waits for now, if its client did not say and its output shows it."""
        hints = trajectory.hints
        if self.tool_calls_of is None or hints.tool_calls is not None:
            return
        if not isinstance(req.finished_reason, FINISH_ABORT):
            calls = self.tool_calls_of(req)
            outcome = "unreadable" if calls is None else "tool_calls" if calls else "no_call"
            self.stats[f"hints.output.{outcome}"] += 1
            trajectory.hints = replace(hints, tool_calls=calls)

    def _contradicts(self, key: identity.TrajectoryKey, continued: Trajectory | None) -> bool:
        """Whether a request can hardly belong to the trajectory that a vague id names.

        Some ids name a user or an application. They are believed as long as requests under them follow one
        another; one that comes in between, or continues something else, is told by its lineage.
        """
        named = self.table.get(key)
        if named is None or named is continued:
            return False
        return bool(named.requests) or named.resident_tokens > 0

    def complete(self, key: identity.TrajectoryKey) -> Released | None:
        """No further request of this trajectory will come.

        Returns:
            the tokens freed now and those freed once its requests have finished or its nodes are
            unlocked; None if the trajectory is unknown.
        """
        trajectory = self.table.get(key)
        if trajectory is None:
            return None
        if not self._signal_completion(trajectory):
            return Released(0, sum(branch.resident_tokens for branch in trajectory.branches))
        return self._release(trajectory)

    def complete_session(self, session_id: str) -> None:
        """Complete what SGLang's session of this id named, in every namespace: its session ids are server-wide."""
        for trajectory in self.table.of_session(session_id):
            self.complete(trajectory.key)

    def _signal_completion(self, trajectory: Trajectory) -> bool:
        self.stats["completed"] += 1
        if self.policy is not None:
            self.policy.completion_signalled()
        return self.table.close(trajectory, self.clock.now())

    def _continued_by(self, req: Req) -> Trajectory | None:
        """The trajectory whose resident tail this request extends."""
        tokens = req.origin_input_ids
        matched, node, _ = self.tree_core.match_full_device_prefix(
            RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt)
        )
        return self.table.lineage(node, matched, tokens) if matched else None

    def _record(self, trajectory: Trajectory, req: Req) -> None:
        """Note where the resident history of a request ends, now that its KV is in the tree."""
        if req.last_node is None or self.tree_core.is_root(req.last_node):
            return
        path = self.tails.path(req.last_node)
        if not path:
            return
        resident = path[-1].path_end
        tokens = req.full_untruncated_fill_ids
        if len(tokens) < resident:
            tokens = req.origin_input_ids + req.output_ids
        self.table.extend(
            trajectory,
            req.rid,
            [PathNode(step.node_id, step.path_end) for step in path],
            prompt=req.origin_input_ids,
            history_tokens=len(req.origin_input_ids) + len(req.output_ids),
            tokens=array("q", tokens[: resident + 1]),
            shared_with=lambda node: self.tails.common_tokens(node, path),
            rewrites=req.finished() and not isinstance(req.finished_reason, FINISH_ABORT),
        )
