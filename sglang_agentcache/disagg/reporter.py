"""The decode side: notes how each request ended, for the prefill worker that holds its prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_agentcache.scheduling.tool_calls import ToolCallReader
from sglang_agentcache.scheduling.waits import Output, finished_output
from sglang_agentcache.trajectory.identity import resolve

from .channel import Channel
from .messages import Ended

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class Reporter:
    """Tells a channel of every request that ends.

    Args:
        channel: where to.
        reader: reads the calls off outputs, in the channel's threads; None: they stay unknown.
    """

    def __init__(self, channel: Channel, reader: ToolCallReader | None) -> None:
        self.channel = channel
        self.reader = reader

    def ended(self, req: Req) -> None:
        """A request has left this worker, by whatever way."""
        room = req.bootstrap_room
        if room is None or req.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            return
        found = resolve(
            req.sampling_params.custom_params, req.session_id, req.kv_hints, req.extra_key, req.cache_salt
        )
        aborted = not req.finished() or isinstance(req.finished_reason, FINISH_ABORT)
        ended = Ended(
            room=room,
            output_tokens=len(req.output_ids),
            aborted=aborted,
            final=bool(found.hints.final),
            extra_key=req.extra_key or None,
            cache_salt=req.cache_salt or None,
        )
        output = finished_output(req, self.reader.parser) if self.reader is not None and not aborted else None
        self.channel.put(req.bootstrap_host, lambda: self._with_calls(ended, output))

    def _with_calls(self, ended: Ended, output: Output | None) -> Ended:
        if self.reader is None or output is None:
            return ended
        return replace(ended, tool_calls=self.reader.read(*output))

    def state(self) -> dict[str, Any]:
        """For `GET /server_info`."""
        return {"channel": self.channel.state()}
