"""AgentScheduler: SGLang's scheduler, telling the cache which trajectory each request belongs to.

Target: SGLang 0.5.23, `sglang.srt.managers.scheduler.Scheduler`, replaced through a REPLACE hook. With any
other cache than `AgentRadixCache` it behaves exactly like its superclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import DumperControlReqOutput
from sglang.srt.managers.scheduler import Scheduler
from sglang.utils import TypeBasedDispatcher

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.serving.hints import COMPLETE, Completion, HintError
from sglang_agentcache.serving.state import server_state
from sglang_agentcache.trajectory.clock import Tick
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import (
        AbortReq,
        CloseSessionReqInput,
        DumperControlReqInput,
        GetInternalStateReq,
        GetInternalStateReqOutput,
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
        cache = self.agent_cache
        if cache is not None and self.is_fully_idle():
            # None is in flight: what the table still thinks active left by a way it was not told of.
            for rid in cache.table.requests_in_flight():
                cache.stats["requests_lost_track_of"] += 1
                cache.request_left(rid)
            # Nothing else would free what a host backup held locked when its trajectory completed. Before the
            # superclass, which may sleep until the next request.
            cache._drain_deferred()
        super().on_idle()

    def close_session(self, recv_req: CloseSessionReqInput) -> None:
        super().close_session(recv_req)
        if self.agent_cache is not None:
            self.agent_cache.complete(TrajectoryKey(Namespace(None, None), recv_req.session_id))

    def get_internal_state(self, recv_req: GetInternalStateReq) -> GetInternalStateReqOutput:
        output = super().get_internal_state(recv_req)
        if self.agent_cache is not None:
            output.internal_state["agentcache"] = server_state(self.agent_cache)
        return output

    def handle_dumper_control(self, recv_req: DumperControlReqInput) -> None:
        if recv_req.method != COMPLETE:
            super().handle_dumper_control(recv_req)
            return
        try:
            answer = self._completed(Completion.parse(recv_req.body))
        except HintError as malformed:
            # SGLang's own dumper endpoint can send any body.
            reply = DumperControlReqOutput(success=False, response=[], error=str(malformed))
        else:
            reply = DumperControlReqOutput(success=answer is not None, response=[answer] if answer else [])
        self.ipc_channels.send_to_tokenizer.send_output(reply, recv_req)

    def _completed(self, asked: Completion) -> dict[str, Any] | None:
        """Complete a trajectory: what became of it, in tokens; None if the cache is not ours."""
        if self.agent_cache is None:
            return None
        released = self.agent_cache.complete(
            TrajectoryKey(Namespace(asked.extra_key, asked.cache_salt), asked.trajectory_id)
        )
        return {
            "known": released is not None,
            "released_tokens": released.released_tokens if released else 0,
            "deferred_tokens": released.deferred_tokens if released else 0,
        }
