"""The prefill side: from the room of a request to the trajectory that its end says something of."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_agentcache.trajectory.identity import Namespace

from .messages import Ended

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_agentcache.cache.radix_cache import AgentRadixCache
    from sglang_agentcache.trajectory.model import Trajectory

MAX_ROOMS = 16_384
"""Transferred requests whose end has not been heard of; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class Room:
    """One request, from its arrival on; `idle_since` is set once it has been transferred."""

    trajectory: Trajectory
    prompt_tokens: int
    idle_since: float | None = None
    early: Ended | None = None
    """The decode worker was faster than this one's look at the transfer."""


class Rooms:
    """Requests of one prefill worker by `bootstrap_room`, and what their decode workers say of them."""

    def __init__(self, cache: AgentRadixCache, max_rooms: int = MAX_ROOMS) -> None:
        self.cache = cache
        self.max_rooms = max_rooms
        self._rooms: OrderedDict[int, Room] = OrderedDict()

    def arrived(self, req: Req) -> None:
        """A request has entered the bootstrap queue; its trajectory is known."""
        trajectory = self.cache.table.of_request(req.rid)
        if req.bootstrap_room is None or trajectory is None or req.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            return
        self._rooms[req.bootstrap_room] = Room(trajectory, len(req.origin_input_ids))
        if len(self._rooms) > self.max_rooms:
            self._rooms.popitem(last=False)

    def ended(self, req: Req) -> None:
        """A request has left this worker: transferred, or failed."""
        room = self._rooms.get(req.bootstrap_room) if req.bootstrap_room is not None else None
        if room is None:
            return
        if isinstance(req.finished_reason, FINISH_ABORT):
            del self._rooms[req.bootstrap_room]
            return
        room.idle_since = room.trajectory.idle_since
        if room.early is not None:
            self.told(room.early)

    def told(self, message: Ended) -> str:
        """A decode worker has told of an end.

        Returns:
            "applied"; "early" (kept until the transfer has been seen); "late" (the trajectory has moved on);
            "unknown" (no such room here); "refused" (the room of another namespace).
        """
        outcome = self._told(message)
        if outcome != "early":
            self.cache.stats[f"hints.decode.{outcome}"] += 1
        return outcome

    def _told(self, message: Ended) -> str:
        room = self._rooms.get(message.room)
        if room is None:
            return "unknown"
        trajectory = room.trajectory
        if trajectory.key.namespace != Namespace(message.extra_key, message.cache_salt):
            return "refused"
        if room.idle_since is None:
            room.early = message
            return "early"
        del self._rooms[message.room]
        if (
            trajectory.requests
            or trajectory.idle_since != room.idle_since
            or self.cache.table.get(trajectory.key) is not trajectory
        ):
            return "late"
        hints = trajectory.hints
        if hints.tool_calls is None and not message.aborted:
            hints = replace(hints, tool_calls=message.tool_calls)
        now = self.cache.clock.now()
        self.cache.table.refine(
            trajectory,
            max(room.idle_since, now - message.age_s),
            hints=hints,
            prompt_tokens=room.prompt_tokens,
            output_tokens=message.output_tokens,
        )
        if message.final:
            self.cache.complete(trajectory.key)
        return "applied"

    def state(self) -> dict[str, Any]:
        """For `GET /server_info`."""
        return {"rooms": len(self._rooms)}
