"""AgentScheduler: SGLang's scheduler, telling the cache which trajectory each request belongs to.

Target: SGLang 0.5.23, `sglang.srt.managers.scheduler.Scheduler`, replaced through a REPLACE hook. With any
other cache than `AgentRadixCache` it behaves exactly like its superclass.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import DumperControlReqOutput
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import get_parallel, get_serving
from sglang.utils import TypeBasedDispatcher

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.flags import CALL_LOG, call_log_bytes
from sglang_agentcache.predictor.store import ArtefactError
from sglang_agentcache.serving.hints import COMPLETE, Completion, HintError
from sglang_agentcache.serving.metrics import AgentCacheMetrics
from sglang_agentcache.serving.reload import RELOAD
from sglang_agentcache.serving.state import server_state
from sglang_agentcache.trajectory.clock import Tick
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

from .call_log import CallLog
from .tool_calls import ToolCallReader
from .waits import Waits

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import (
        AbortReq,
        CloseSessionReqInput,
        DumperControlReqInput,
        GetInternalStateReq,
        GetInternalStateReqOutput,
    )
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)


class AgentScheduler(Scheduler):
    """Marks trajectories active when a request is queued, and answers for the cache's state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cache = self.agent_cache
        self.waits = None if cache is None else Waits(cache, self._tool_call_reader(), _call_log())
        self.agent_metrics = None
        if cache is not None and self.metrics_collector_context.current_scheduler_metrics_enabled:
            self.agent_metrics = AgentCacheMetrics(self.metrics_collector, cache)

    def _tool_call_reader(self) -> ToolCallReader | None:
        serving = get_serving()
        missing = "no --tool-call-parser" if not serving.tool_call_parser else ""
        missing = "--skip-tokenizer-init" if self.tokenizer is None else missing
        if missing:
            logger.info("agentcache: tool calls are known from hints only (%s)", missing)
            return None
        return ToolCallReader(self.tokenizer, serving.tool_call_parser, serving.reasoning_parser)

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

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        super().process_input_requests(recv_reqs)
        if self.agent_metrics is not None:
            self.agent_metrics.refresh()

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
            cache.release_deferred()
        super().on_idle()

    def close_session(self, recv_req: CloseSessionReqInput) -> None:
        super().close_session(recv_req)
        if self.agent_cache is not None:
            self.agent_cache.complete_session(recv_req.session_id)

    def get_internal_state(self, recv_req: GetInternalStateReq) -> GetInternalStateReqOutput:
        output = super().get_internal_state(recv_req)
        if self.agent_cache is not None and self.waits is not None:
            output.internal_state["agentcache"] = server_state(self.agent_cache) | self.waits.state()
        return output

    def handle_dumper_control(self, recv_req: DumperControlReqInput) -> None:
        answer = {COMPLETE: self._completed, RELOAD: self._reloaded}.get(recv_req.method)
        if answer is None:
            super().handle_dumper_control(recv_req)
            return
        try:
            found = answer(recv_req.body)
        except HintError as refused:
            # SGLang's own dumper endpoint can send any body.
            reply = DumperControlReqOutput(success=False, response=[], error=str(refused))
        else:
            reply = DumperControlReqOutput(success=found is not None, response=[found] if found else [])
        self.ipc_channels.send_to_tokenizer.send_output(reply, recv_req)

    def _reloaded(self, body: object) -> dict[str, Any] | None:
        """Take another predictor into use, between two steps, or say why not; None if the cache is not ours."""
        if self.waits is None:
            return None
        try:
            return {"artefact": self.waits.reload(body)}
        except ArtefactError as refused:
            return {"refused": str(refused)}

    def _completed(self, body: object) -> dict[str, Any] | None:
        """Complete a trajectory: what became of it, in tokens; None if the cache is not ours."""
        asked = Completion.parse(body)
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


def _call_log() -> CallLog | None:
    """The call log of this process: one of each data-parallel rank's processes writes."""
    path, parallel = os.environ.get(CALL_LOG), get_parallel()
    if not path or parallel.pp_rank != 0 or parallel.attn_tp_rank != 0:
        return None
    suffix = f".dp{parallel.dp_rank}" if parallel.dp_rank else ""
    return CallLog(Path(path + suffix), call_log_bytes())
