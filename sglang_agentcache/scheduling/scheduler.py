"""AgentScheduler: SGLang's scheduler, telling the cache which trajectory each request belongs to.

Target: SGLang 0.5.23, `sglang.srt.managers.scheduler.Scheduler`, replaced through a REPLACE hook. With any
other cache than `AgentRadixCache` it behaves exactly like its superclass.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.io_struct import DumperControlReqOutput
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.runtime_context import get_parallel, get_serving

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.disagg.messages import ENDED, parse_batch
from sglang_agentcache.disagg.reporter import Reporter
from sglang_agentcache.disagg.rooms import Rooms
from sglang_agentcache.disagg.scheduling import EndNotingStreamer, role_of
from sglang_agentcache.disagg.settings import channel_settings
from sglang_agentcache.flags import CALL_LOG, call_log_bytes, patience
from sglang_agentcache.predictor.store import ArtefactError
from sglang_agentcache.serving.hints import COMPLETE, Completion, HintError
from sglang_agentcache.serving.metrics import measure
from sglang_agentcache.serving.reload import RELOAD
from sglang_agentcache.serving.state import server_state
from sglang_agentcache.trajectory.clock import Tick
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

from . import order
from .call_log import CallLog
from .guarded import GuardedScheduler
from .prefix_aware import PrefixAwarePolicy, adder_class
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
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

logger = logging.getLogger(__name__)


class AgentScheduler(GuardedScheduler):
    """Marks trajectories active when a request is queued, and answers for the cache's state."""

    pd_role: Rooms | Reporter | None = None

    schedule_policy: str
    processed_tokens_counter: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cache = self.agent_cache
        reads = cache is not None or channel_settings() is not None
        reader = self._tool_call_reader() if reads else None
        self.waits = None if cache is None else Waits(cache, reader, _call_log())
        self.pd_role = role_of(self, reader)
        self.agent_metrics = None
        if self.metrics_collector_context.current_scheduler_metrics_enabled:
            channel = self.pd_role.channel if isinstance(self.pd_role, Reporter) else None
            self.agent_metrics = measure(self.metrics_collector, cache, channel, self.door)

    def _tool_call_reader(self) -> ToolCallReader | None:
        serving = get_serving()
        missing = "no --tool-call-parser" if not serving.tool_call_parser else ""
        missing = "--skip-tokenizer-init" if self.tokenizer is None else missing
        if self.disaggregation_mode == DisaggregationMode.PREFILL:
            missing = (
                "a prefill worker's decode workers may tell it of others: --agentcache-prefill-url there"
            )
        if missing:
            logger.info("agentcache: tool calls are known from hints only (%s)", missing)
            return None
        return ToolCallReader(self.tokenizer, serving.tool_call_parser, serving.reasoning_parser)

    @property
    def agent_cache(self) -> AgentRadixCache | None:
        """The cache, if it is ours."""
        cache = self.tree_cache
        return cache if isinstance(cache, AgentRadixCache) else None

    def init_schedule_policy(self) -> None:
        asked = self.schedule_policy
        if asked in order.POLICY_NAMES:
            # Everything else that SGLang sets up here does not depend on the policy.
            self.schedule_policy = "fcfs"
        super().init_schedule_policy()
        self.schedule_policy = asked
        if asked in order.POLICY_NAMES:
            self.policy = PrefixAwarePolicy(
                self.tree_cache,
                patience=math.inf if asked == order.GREEDY else patience(),
                batch_tokens=self.chunked_prefill_size or self.max_prefill_tokens,
                enable_hierarchical_cache=self.enable_hierarchical_cache,
                enable_priority_scheduling=self.enable_priority_scheduling,
                schedule_low_priority_values_first=self.schedule_low_priority_values_first,
            )

    def get_prefill_adder_class(self) -> type[PrefillAdder]:
        return adder_class(self.policy)

    def run_batch(self, batch: ScheduleBatch, *args: Any) -> Any:
        processed = self.processed_tokens_counter
        decodes = batch.forward_mode.is_decode()
        result = super().run_batch(batch, *args)
        if decodes and isinstance(self.policy, PrefixAwarePolicy):
            # A batch that has been prefilled still says how many tokens that were, and SGLang counts them again
            # with each token decoded (hrrn ages by that count too).
            self.processed_tokens_counter = processed
        return result

    def _poll_timeout_aborts(self) -> list[Any]:
        # Only the leader is asked, and what it answers rides the broadcast of requests.
        local: list[Any] = super()._poll_timeout_aborts()
        tick = self.agent_cache.clock.tick() if self.agent_cache is not None else None
        return local if tick is None else [*local, tick]

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        if self.agent_cache is not None:
            self.agent_cache.request_arrived(req)
        if isinstance(self.pd_role, Rooms):
            self.pd_role.arrived(req)
        super()._add_request_to_queue(req, is_retracted)

    def get_output_streamer_class(self) -> type[SchedulerOutputStreamer]:
        return EndNotingStreamer

    def init_output_streamer(self) -> None:
        super().init_output_streamer()
        self.output_streamer.on_ended = self.request_ended

    def request_ended(self, req: Req) -> None:
        """A request's last output has been sent, or the word that there will be none."""
        if self.agent_cache is not None:
            self.agent_cache.request_left(req.rid)
        if self.door is not None:
            self.door.left(req.rid)
        if isinstance(self.policy, PrefixAwarePolicy):
            self.policy.left(req)
        if self.pd_role is not None:
            self.pd_role.ended(req)

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        # The leader's time first: a tick comes behind the requests, and after a sleep the one before it is old.
        for tick in recv_reqs:
            if isinstance(tick, Tick) and self.agent_cache is not None:
                self.agent_cache.clock.advance(tick)
        super().process_input_requests([message for message in recv_reqs if not isinstance(message, Tick)])
        if self.agent_metrics is not None:
            self.agent_metrics.refresh()

    def send_abort_output(self, abort_req: AbortReq, req: Req) -> None:
        super().send_abort_output(abort_req, req)
        self.request_ended(req)

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
        state: dict[str, Any] = {}
        if self.agent_cache is not None and self.waits is not None:
            state |= server_state(self.agent_cache) | self.waits.state()
            state["admission"] = None if self.door is None else self.door.state()
        if self.pd_role is not None:
            state |= self.pd_role.state()
        if state:
            output.internal_state["agentcache"] = state
        return output

    def handle_dumper_control(self, recv_req: DumperControlReqInput) -> None:
        answer = {COMPLETE: self._completed, RELOAD: self._reloaded, ENDED: self._told}.get(recv_req.method)
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

    def _told(self, body: object) -> dict[str, Any] | None:
        """What decode workers saw of requests that began here; None if this is no prefill worker of ours."""
        if not isinstance(self.pd_role, Rooms):
            return None
        return {"outcomes": dict(Counter(self.pd_role.told(message) for message in parse_batch(body)))}

    def _completed(self, body: object) -> dict[str, Any] | None:
        """Complete a trajectory: what became of it, in tokens; None if the cache is not ours."""
        asked = Completion.parse(body)
        if self.agent_cache is None:
            # A decode worker without a radix cache keeps nothing of a trajectory.
            decodes = self.disaggregation_mode == DisaggregationMode.DECODE
            return {"known": False, "released_tokens": 0, "deferred_tokens": 0} if decodes else None
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
