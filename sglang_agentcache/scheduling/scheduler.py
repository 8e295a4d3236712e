"""AgentScheduler: SGLang's scheduler, telling the cache which trajectory each request belongs to.

Target: SGLang 0.5.23, `sglang.srt.managers.scheduler.Scheduler`, replaced through a REPLACE hook. With any
other cache than `AgentRadixCache` it behaves exactly like its superclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import SetInternalStateReqOutput
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import get_parallel
from sglang.utils import TypeBasedDispatcher

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.serving.state import server_state
from sglang_agentcache.trajectory.clock import Tick
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import (
        AbortReq,
        CloseSessionReqInput,
        GetInternalStateReq,
        GetInternalStateReqOutput,
        SetInternalStateReq,
    )
    from sglang.srt.managers.schedule_batch import Req


class AgentScheduler(Scheduler):
    """Marks trajectories active when a request is queued, and answers for the cache's state."""

    @property
    def agent_cache(self) -> AgentRadixCache | None:
        """The cache, if it is ours."""
        cache = self.tree_cache
        return cache if isinstance(cache, AgentRadixCache) else None

    def init_request_dispatcher(self) -> None:
        super().init_request_dispatcher()
        self._request_dispatcher += TypeBasedDispatcher([(Tick, self.advance_clock)])

    def advance_clock(self, tick: Tick) -> None:
        """The leader's time has arrived with the requests."""
        if self.agent_cache is not None:
            self.agent_cache.clock.advance(tick)

    def _poll_timeout_aborts(self) -> list[Any]:
        # Only the leader is asked, and what it answers rides the broadcast of requests.
        local: list[Any] = super()._poll_timeout_aborts()
        tick = self.agent_cache.clock.tick() if self.agent_cache is not None else None
        return local if tick is None else [*local, tick]

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        if self.agent_cache is not None:
            self.agent_cache.request_arrived(req)
        super()._add_request_to_queue(req, is_retracted)

    def send_abort_output(self, abort_req: AbortReq, req: Req) -> None:
        super().send_abort_output(abort_req, req)
        if self.agent_cache is not None:
            self.agent_cache.request_left(req.rid)

    def on_idle(self) -> None:
        super().on_idle()
        # No request is in flight: whatever the table still thinks active left by a way it was not told of.
        if self.agent_cache is not None and self.is_fully_idle():
            for rid in self.agent_cache.table.requests_in_flight():
                self.agent_cache.stats["requests_lost_track_of"] += 1
                self.agent_cache.request_left(rid)

    def close_session(self, recv_req: CloseSessionReqInput) -> None:
        super().close_session(recv_req)
        if self.agent_cache is not None:
            self.agent_cache.complete(TrajectoryKey(Namespace(None, None), recv_req.session_id))

    def get_internal_state(self, recv_req: GetInternalStateReq) -> GetInternalStateReqOutput:
        output = super().get_internal_state(recv_req)
        if self.agent_cache is not None:
            output.internal_state["agentcache"] = server_state(self.agent_cache)
        return output

    def set_internal_state(self, recv_req: SetInternalStateReq) -> SetInternalStateReqOutput:
        request = recv_req.server_args.get("agentcache") if self.agent_cache is not None else None
        if request is None:
            return super().set_internal_state(recv_req)
        assert self.agent_cache is not None
        asked = request["complete"]
        key = TrajectoryKey(Namespace(asked.get("extra_key"), asked.get("cache_salt")), asked["trajectory_id"])
        released = self.agent_cache.complete(key)
        answer = {
            "trajectory_id": key.trajectory_id,
            "known": released is not None,
            "released_tokens": released.released_tokens if released else 0,
            "deferred_tokens": released.deferred_tokens if released else 0,
        }
        return SetInternalStateReqOutput(updated=True, server_args={"agentcache": answer})


def ranks_sharing_a_clock() -> int:
    """How many scheduler processes must agree on every order."""
    parallel = get_parallel()
    return int(parallel.tp_size * parallel.pp_size)
