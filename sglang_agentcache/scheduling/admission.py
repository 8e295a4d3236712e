"""The door: first requests of new trajectories wait here while letting them in would slow everybody.

Requests of trajectories that are inside pass, as do those whose trajectory nobody named (the client may well be
inside under an id that only its next request's lineage will tell) and those of sub-agents whose parent is inside.
Who waits is let in, in the order of arrival, as soon as one of these holds:

* there is room: the histories of the live trajectories, grown to what is usual here and counted by how likely each
  comes back, and the newcomer's fit into the pool times `Overcommit.limit`;
* nothing is running and nothing else waits, and either nobody is inside or that has been so for `IDLE_S`;
* `PATIENCE_POOLS` pools of useful tokens were processed, prefilled for the first time or decoded, since one was
  last let in.

The last two are the bound: with `n` others before it, a request waits for at most `(n + 1) * PATIENCE_POOLS` pools of
useful tokens, and a machine that has nothing to process lets one in every `IDLE_S`.

No SGLang import. Everything is decided from the queue, the table, counted tokens and the shared clock, so that all
ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_agentcache.trajectory.identity import TrajectoryKey
from sglang_agentcache.trajectory.model import ANONYMOUS, Trajectory
from sglang_agentcache.trajectory.table import TrajectoryTable

from .load import Load
from .overcommit import Overcommit
from .returns import AWAY_S, Returns

PATIENCE_POOLS = 2.0
IDLE_S = 10.0
"""With nothing to run for so long one is let in, whether there is room or not: those inside wait for slow tools."""
LOOK_S = 0.1
"""Whether there is room for the first one is looked at so often; that takes a look at every trajectory inside, but
those that come together share it."""
SAMPLES = 32
"""What is usual is the mean of about so many."""


class Request(Protocol):
    """What the door reads of SGLang's `Req`."""

    rid: str
    origin_input_ids: Sequence[int]
    prefix_len: int
    extend_end: int
    arrival_processed_tokens: int


@dataclass(slots=True)
class Footprint:
    """What the door knows of one trajectory inside."""

    shared: int | None = None
    """Tokens that it found in the pool when it came."""
    own: int = 0
    """Tokens beyond these, at most so far."""


class _Mean:
    """Of all samples at first, then with the weight of old ones fading."""

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    def add(self, sample: float) -> None:
        self._count = min(SAMPLES, self._count + 1)
        self.value += (sample - self.value) / self._count


class _Held:
    """Tokens that trajectories hold, counted once, and only as far as it is asked."""

    def __init__(self, uncounted: Iterator[float]) -> None:
        self._uncounted = uncounted
        self.tokens = 0.0
        """Of those counted so far."""

    def at_most(self, tokens: float) -> bool:
        """Whether all of them hold no more than this."""
        while self.tokens <= tokens:
            further = next(self._uncounted, None)
            if further is None:
                return True
            self.tokens += further
        return False


@dataclass(frozen=True, slots=True)
class _Arrival:
    req: Request
    clock_s: float
    useful_tokens: int


class Door:
    """Holds requests back and measures what that depends on.

    Args:
        table: of the cache.
        pool_tokens: of the device pool.
        now: the shared clock, seconds.
        overcommit: of the pool; default: with everything as it is without a host tier.
        overlapped: see `load.Load`.

    Attributes:
        waited_s: seconds that those let in so far have waited, all together; ``longest_s`` is the longest.
        let_in: trajectories let in, by reason: ``room``, ``idle``, ``patience``.
    """

    def __init__(
        self,
        table: TrajectoryTable,
        pool_tokens: int,
        now: Callable[[], float],
        overcommit: Overcommit | None = None,
        *,
        overlapped: bool = False,
    ) -> None:
        self.table, self.pool_tokens, self._now = table, pool_tokens, now
        self.load, self.overcommit = Load(overlapped=overlapped), overcommit or Overcommit()
        self.let_in = {"room": 0, "idle": 0, "patience": 0}
        self.waited_s = self.longest_s = 0.0
        self._waiting: dict[str, _Arrival] = {}  # first come first
        self._own, self._shared = _Mean(), _Mean()
        self._returns = Returns()
        table.on_return.append(self._came_back)
        self._counted = float("-inf")
        """Those idle since then, or for longer, have been counted as away."""
        self._last_entry = 0
        self._decoded = 0
        self._idle_since: float | None = None
        self._looked: tuple[str, float] | None = None
        """For whom there was no room, and when."""

    @property
    def waiting(self) -> int:
        """Requests at the door."""
        return len(self._waiting)

    def arrived(self, req: Request) -> None:
        """A request has entered the queue, and its trajectory the table."""
        trajectory = self.table.of_request(req.rid)
        if trajectory is None or req.rid in self._waiting or trajectory.footprint is not None:
            return
        if trajectory.key.trajectory_id.startswith(ANONYMOUS) or self._parent_inside(trajectory):
            trajectory.footprint = Footprint()
        else:
            self._waiting[req.rid] = _Arrival(req, self._now(), self.useful_tokens)

    def _came_back(self, trajectory: Trajectory, idle_s: float) -> None:
        if trajectory.footprint is None:
            return
        if 0 <= idle_s < AWAY_S:
            self._returns.came(idle_s)
        elif trajectory.idle_since > self._counted:
            self._returns.stayed()

    def _count_away(self, now: float) -> None:
        for trajectory in self.table.latest_idle():
            if trajectory.idle_since <= self._counted:
                break
            if trajectory.footprint is not None and now - trajectory.idle_since >= AWAY_S:
                self._returns.stayed()
        self._counted = now - AWAY_S
        self._returns.fade()

    def _parent_inside(self, trajectory: Trajectory) -> bool:
        parent_id = getattr(trajectory.hints, "parent_id", None)
        if parent_id is None:
            return False
        parent = self.table.get(TrajectoryKey(trajectory.key.namespace, parent_id))
        return parent is not None and parent.footprint is not None

    def left(self, rid: str) -> None:
        """A request has left the server."""
        self._waiting.pop(rid, None)

    # ---- each scheduling step ----

    def __contains__(self, rid: str) -> bool:
        return rid in self._waiting

    def forget_lost(self) -> None:
        """Forget requests that left by a way that nobody told the door of."""
        for rid in [rid for rid in self._waiting if self.table.of_request(rid) is None]:
            del self._waiting[rid]

    def enter(self, *, idle: bool) -> list[Request]:
        """Decide who is let in now.

        Args:
            idle: nothing runs, and nothing waits but what is at this door.

        Returns:
            the requests just let in, first come first.
        """
        now = self._now()
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        held = _Held(self._tokens_inside(now))
        entered: list[Request] = []
        while self._waiting:
            rid, arrival = next(iter(self._waiting.items()))
            trajectory = self.table.of_request(rid)
            if trajectory is not None and trajectory.footprint is None:
                reason = self._reason(arrival, held, now, idle and not entered)
                if reason is None:
                    break
                trajectory.footprint = Footprint(own=round(self._own_of(arrival.req)))
                if reason == "room":
                    held.tokens += self._grown(trajectory)
                else:  # it may be among those counted, or not
                    held = _Held(self._tokens_inside(now))
                self._note_entry(reason, now - arrival.clock_s)
            del self._waiting[rid]
            if trajectory is not None:
                entered.append(arrival.req)
        return entered

    def _note_entry(self, reason: str, waited_s: float) -> None:
        self.let_in[reason] += 1
        self.waited_s += waited_s
        self.longest_s = max(self.longest_s, waited_s)
        self._last_entry = self.useful_tokens

    def _own_of(self, req: Request) -> float:
        """What a newcomer will need, as far as can be told."""
        return max(len(req.origin_input_ids) - self._shared.value, self._own.value)

    def _reason(self, arrival: _Arrival, held: _Held, now: float, idle: bool) -> str | None:
        if self._looked is None or self._looked[0] != arrival.req.rid or now - self._looked[1] >= LOOK_S:
            its_own = self._own_of(arrival.req)
            if held.at_most(self.overcommit.limit * self.pool_tokens - its_own - self._shared.value):
                return "room"
            self._looked = (arrival.req.rid, now)
        if idle and (self._idles_on(now) or next(self._inside(now), None) is None):
            return "idle"
        waited = self.useful_tokens - max(self._last_entry, arrival.useful_tokens)
        return "patience" if waited >= PATIENCE_POOLS * self.pool_tokens else None

    def _idles_on(self, now: float) -> bool:
        return self._idle_since is not None and now - self._idle_since >= IDLE_S

    def _tokens_inside(self, now: float) -> Iterator[float]:
        return (likely * self._grown(trajectory) for trajectory, likely in self._inside(now))

    def _grown(self, trajectory: Trajectory) -> float:
        """Tokens of its history, grown to what is usual."""
        return max(trajectory.footprint.own, self._own.value)

    def _inside(self, now: float) -> Iterator[tuple[Trajectory, float]]:
        """Trajectories that hold a place, and how likely each needs it: those with a request in flight, then those
        idle for a short time."""
        for trajectory in self.table.active():
            if trajectory.footprint is not None:
                yield trajectory, 1.0
        for trajectory in self.table.latest_idle():
            idle_s = now - trajectory.idle_since
            if idle_s >= AWAY_S:
                return
            if trajectory.footprint is not None:
                yield trajectory, self._returns.likely(idle_s)

    @property
    def useful_tokens(self) -> int:
        """Prefilled for the first time and decoded, since the start."""
        return self.load.processed_tokens - self.load.redone_tokens + self._decoded

    def runs(self, prefilled: Iterable[Request], *, decoding: int, idle: bool) -> None:
        """What the scheduler has planned for this step.

        Args:
            prefilled: requests of which tokens ``prefix_len`` to ``extend_end`` are prefilled.
            decoding: tokens decoded until the next step, if it prefills nothing.
            idle: neither.
        """
        now = self._now()
        self.load.passed(now)
        tokens = redone = 0
        returned: list[int] = []
        for req in prefilled:
            count = req.extend_end - req.prefix_len
            tokens += count
            trajectory = self.table.of_request(req.rid)
            if trajectory is None:
                continue
            history = trajectory.branches[-1].history_tokens if trajectory.branches else 0
            again = max(0, min(history, req.extend_end) - req.prefix_len)
            redone += again
            if self._note(trajectory, req, history):
                returned.append(min(history, len(req.origin_input_ids)))
        if not tokens:
            self._decoded += decoding
        self.load.runs(tokens, redone, returned, idle)
        if self.load.round_over:
            self._next_round(now)

    def _next_round(self, now: float) -> None:
        self._count_away(now)
        inside = list(self._inside(now))
        self.load.next_round(round(sum(likely for _, likely in inside)))
        tokens = sum(likely * self._grown(trajectory) for trajectory, likely in inside)
        pools = (tokens + self._shared.value) / self.pool_tokens
        self.overcommit.update(self.load.waste, self.load.idle, self.load.stake, pools)

    def decodes(self, tokens: int) -> None:
        """This step prefills nothing, and decodes so many tokens."""
        if self.load.decodes_on(self._now()):
            self._decoded += tokens
        else:
            self.runs((), decoding=tokens, idle=False)

    def _note(self, trajectory: Trajectory, req: Request, history: int) -> bool:
        """Keep what a request says of its trajectory's size; whether it is a return, whole with this step."""
        if trajectory.footprint is None:
            trajectory.footprint = Footprint()
        footprint: Footprint = trajectory.footprint
        length = len(req.origin_input_ids)
        if footprint.shared is None:
            # What its first request finds is others' too.
            footprint.shared, footprint.own = req.prefix_len, length - req.prefix_len
            self._shared.add(req.prefix_len)
        if not history or req.extend_end < length:
            return False
        footprint.own = max(footprint.own, length - footprint.shared, history - footprint.shared)
        self._own.add(footprint.own)
        return True

    def state(self) -> dict[str, Any]:
        """For `GET /server_info`."""
        now = self._now()
        head = next(iter(self._waiting.values()), None)
        return {
            "waiting": self.waiting,
            "oldest_wait_s": round(now - head.clock_s, 3) if head else 0.0,
            "waited_s": round(self.waited_s, 3),
            "longest_wait_s": round(self.longest_s, 3),
            "let_in": dict(self.let_in),
            "limit_pools": round(self.overcommit.limit, 3),
            "waste": round(self.load.waste, 4),
            "idle": round(self.load.idle, 4),
            "stake": None if self.load.stake is None else round(self.load.stake, 3),
            "redone_tokens": self.load.redone_tokens,
        }
