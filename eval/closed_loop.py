"""The closed loop: a fixed number of live agents, each sending its next request when its gap has passed."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.client import Client, RequestFailed
from eval.records import RequestRecord
from eval.tokens import History, TokenSource
from eval.trace import Trajectory, Turn


@dataclass(frozen=True)
class ReplayConfig:
    """How to replay. ``hints`` sends the agentcache payload, ``oracle`` adds the true idle time to it, and
    without ``tool_calls`` it does not say which tools run. ``router`` is as in `client.Client`."""

    url: str
    concurrency: int
    seed: int = 0
    hints: bool = False
    oracle: bool = False
    tool_calls: bool = True
    router: bool = False
    vocab_size: int = 256
    first_id: int = 0
    ramp_s: float = 0.0
    """The first agents start evenly spread over this time, not all at once."""
    api_key: str | None = None
    timeout_s: float = 600.0


@dataclass
class Outcome:
    """Everything measured so far; complete only if ``finished``."""

    requests: list[RequestRecord] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    """Per completed trajectory: wall time without its tool and user gaps."""
    wall_s: float = 0.0
    finished: bool = False


def next_call(turn: Turn) -> list[dict[str, str]]:
    """The tool calls whose results trigger ``turn``: what the model's output before it contained."""
    if turn.kind != "tool" or turn.tool_name is None:
        return []
    arguments = turn.tool_args or "{}"
    if not turn.tools:
        return [{"name": turn.tool_name, "arguments": arguments}]
    # Only the arguments of the call that returned last are recorded.
    last = max((i for i, (name, _) in enumerate(turn.tools) if name == turn.tool_name), default=None)
    return [
        {"name": name, "arguments": arguments if i == last else "{}"}
        for i, (name, _) in enumerate(turn.tools)
    ]


def hint(trajectory: Trajectory, index: int, oracle: bool, tool_calls: bool = True) -> dict[str, Any]:
    """The ``custom_params`` of one request: whose it is, whether it is the last, which tools run next."""
    following = trajectory.turns[index + 1] if index + 1 < len(trajectory.turns) else None
    payload: dict[str, Any] = {"trajectory_id": trajectory.trajectory_id, "final": following is None}
    if trajectory.parent is not None:
        payload["parent_id"] = trajectory.parent
    if following is not None:
        if tool_calls and (calls := next_call(following)):
            payload["tool_calls"] = calls
        if oracle and following.gap_s is not None:
            payload["expected_idle_s"] = following.gap_s
    return {"agentcache": payload}


class _Pool:
    """KV that the clients hold at the server: of requests in flight, and of all live trajectories."""

    def __init__(self) -> None:
        self.active: dict[str, int] = {}
        self.private: dict[str, int] = {}
        self._shared: dict[str, tuple[str, int]] = {}

    def hold(self, trajectory: Trajectory, context: int) -> None:
        """The trajectory's context is now ``context`` tokens."""
        self.private[trajectory.trajectory_id] = context - trajectory.shared_prefix_tokens
        if trajectory.shared_prefix_id is not None:
            size = trajectory.shared_prefix_tokens
            self._shared[trajectory.trajectory_id] = (trajectory.shared_prefix_id, size)

    def drop(self, trajectory: Trajectory) -> None:
        """The trajectory is over."""
        self.private.pop(trajectory.trajectory_id, None)
        self._shared.pop(trajectory.trajectory_id, None)

    def active_tokens(self) -> int:
        return sum(self.active.values()) + self._prefixes(self.active)

    def live_tokens(self) -> int:
        return sum(self.private.values()) + self._prefixes(self.private)

    def _prefixes(self, ids: dict[str, int]) -> int:
        sizes: dict[str, int] = {}
        for key in ids:
            if key in self._shared:
                prefix, size = self._shared[key]
                sizes[prefix] = max(size, sizes.get(prefix, 0))
        return sum(sizes.values())


class Replay:
    """One replay; ``outcome`` grows while `run` runs and stays readable after a cancellation."""

    def __init__(
        self,
        config: ReplayConfig,
        trajectories: Sequence[Trajectory],
        on_request: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        self.outcome = Outcome()
        self._config = config
        self._waiting = collections.deque(trajectories)
        self._on_request = on_request
        self._source = TokenSource(config.seed, config.vocab_size, config.first_id)
        self._pool = _Pool()
        self._start = 0.0

    async def run(self) -> Outcome:
        """Replay every trajectory once. A failed request ends its trajectory and is counted as an error."""
        config = self._config
        self._start = time.perf_counter()
        try:
            async with (
                Client(config.url, config.api_key, config.timeout_s, config.router) as client,
                asyncio.TaskGroup() as agents,
            ):
                for number in range(config.concurrency):
                    agents.create_task(self._agent(client, number * config.ramp_s / config.concurrency))
            self.outcome.finished = True
        finally:
            self.outcome.wall_s = time.perf_counter() - self._start
        return self.outcome

    async def _agent(self, client: Client, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while self._waiting:
            trajectory = self._waiting.popleft()
            started = time.perf_counter()
            waited = await self._trajectory(client, trajectory)
            self._pool.drop(trajectory)
            if waited is not None:
                self.outcome.session_s.append(time.perf_counter() - started - waited)

    async def _trajectory(self, client: Client, trajectory: Trajectory) -> float | None:
        """Replay one trajectory; returns the seconds of its gaps, or None if a request failed."""
        history = History(
            self._source,
            trajectory.trajectory_id,
            trajectory.shared_prefix_id,
            trajectory.shared_prefix_tokens,
        )
        waited = 0.0
        for index, turn in enumerate(trajectory.turns):
            gap = (turn.gap_s or 0.0) if index else 0.0
            if gap:
                slept = time.perf_counter()
                await asyncio.sleep(gap)
                waited += time.perf_counter() - slept
            if not await self._request(client, trajectory, index, history, gap):
                return None
        return waited

    async def _request(
        self, client: Client, trajectory: Trajectory, index: int, history: History, gap: float
    ) -> bool:
        turn = trajectory.turns[index]
        prompt = history.prompt(turn)
        size = len(prompt) + turn.output_tokens
        self._pool.hold(trajectory, size)
        self._pool.active[trajectory.trajectory_id] = size - trajectory.shared_prefix_tokens
        record = RequestRecord(
            trajectory_id=trajectory.trajectory_id,
            source=trajectory.source,
            turn=index,
            kind=turn.kind,
            tool_name=turn.tool_name,
            sent_s=time.perf_counter() - self._start,
            gap_s=gap,
            prompt_tokens=len(prompt),
            history_tokens=history.kept_tokens,
            final=index + 1 == len(trajectory.turns),
            active_tokens=self._pool.active_tokens(),
            live_tokens=self._pool.live_tokens(),
        )
        config = self._config
        params = hint(trajectory, index, config.oracle, config.tool_calls) if config.hints else None
        try:
            answer = await client.generate(prompt, turn.output_tokens, params)
        except RequestFailed as error:
            record.error = str(error)
        else:
            history.extend(answer.output_ids)
            record.cached_tokens = answer.cached_tokens
            record.output_tokens = len(answer.output_ids)
            record.ttft_s, record.latency_s = answer.first_s, answer.total_s
        finally:
            del self._pool.active[trajectory.trajectory_id]
        self.outcome.requests.append(record)
        self._on_request(record)
        return record.error is None
