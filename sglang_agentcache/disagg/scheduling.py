"""What a scheduler does with a request that ends, by its role in PD.

Target: SGLang 0.5.23, `SchedulerOutputStreamer` (through `Scheduler.get_output_streamer_class`, an extension
point): every way a request can end passes there or through `Scheduler.send_abort_output`. In PD some pass
nowhere else: a prompt too long for the bootstrap queue, a failed hand-over on the decode side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.runtime_context import get_parallel

from .channel import Channel
from .reporter import Reporter
from .rooms import Rooms
from .settings import channel_settings, secret

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_agentcache.scheduling.scheduler import AgentScheduler
    from sglang_agentcache.scheduling.tool_calls import ToolCallReader


class EndNotingStreamer(SchedulerOutputStreamer):
    """Tells of each request whose last output it has streamed."""

    on_ended: Callable[[Req], None] | None = None

    def stream_output(self, reqs: list[Req], return_logprob: bool, skip_req: Req | None = None) -> None:
        # Each step asks this of every running request: an attribute costs half of what `req.finished()` does.
        ended = [
            req
            for req in reqs
            if req.finished_reason is not None and not req.finished_output and req is not skip_req
        ]
        super().stream_output(reqs, return_logprob, skip_req)
        if self.on_ended is not None:
            for req in ended:
                self.on_ended(req)


def role_of(scheduler: AgentScheduler, reader: ToolCallReader | None) -> Rooms | Reporter | None:
    """What this scheduler is in PD; None outside it, and where nobody tells or is told."""
    settings = channel_settings()
    mode = scheduler.disaggregation_mode
    if mode == DisaggregationMode.PREFILL and scheduler.agent_cache is not None and secret() is not None:
        return Rooms(scheduler.agent_cache)
    if settings is None or not _speaks_for_its_rank():
        return None
    args: Any = scheduler.server_args
    return Reporter(Channel(settings, args.api_key), reader)


def _speaks_for_its_rank() -> bool:
    """All processes of one data-parallel rank see the same ends; one tells of them."""
    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0)
