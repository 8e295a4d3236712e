"""One run: a closed loop of agents against one simulated server, in virtual time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from eval.closed_loop import hint
from eval.records import RequestRecord
from eval.sim.baselines import Baseline, Facts
from eval.sim.checks import Checks
from eval.sim.cost import CostModel
from eval.sim.decode import DecodeWorker
from eval.sim.door import GuardedWorker
from eval.sim.pressure import Demand
from eval.sim.scheduler import Settings, SimulationError, Worker
from eval.sim.schedules import Schedule
from eval.sim.tokens import Context, Ids
from eval.sim.world import World
from eval.trace import Trajectory

ASK_S = 1.0
"""A server that has nothing to do plans all the time; here so often, and when something happens."""
TRANSFER_LATENCY_S = 0.005
"""PD: set-up of one KV transfer."""


@dataclass(frozen=True)
class Run:
    """What to simulate. Everything that a result depends on is in here and in the trajectories."""

    baseline: Baseline
    concurrency: int
    capacity_tokens: int
    seed: int = 0
    """Names the run; what depends on it (sample, order, drawn gaps) is in the trajectories."""
    completion: bool = True
    ramp_s: float = 0.0
    """The first agents start evenly spread over this time."""
    max_new_tokens: int | None = None
    """What clients ask for at most; None: exactly the recorded output, as the replay client does."""
    decode_workers: int = 0
    """0: one server for prefill and decode. Else PD: one prefill server and this many decode servers."""
    decode_capacity_tokens: int = 0
    transfer_s_per_token: float = 0.0
    settings: Settings = field(default_factory=Settings)
    admission: str = "off"
    """`--agentcache-admission`; only with this package's cache."""
    check: bool = False


@dataclass
class Outcome:
    """What one run measured; complete only if ``finished``."""

    requests: list[RequestRecord] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    makespan_s: float = 0.0
    evicted_tokens: int = 0
    released_tokens: int = 0
    prefill_tokens: int = 0
    retractions: int = 0
    finished: bool = False
    pressure: dict[str, Any] = field(default_factory=dict)
    cache_stats: dict[str, int] = field(default_factory=dict)
    door: dict[str, Any] | None = None
    """`Door.state` at the end, if there was one."""


class _Agent:
    """A trajectory being replayed."""

    def __init__(self, trajectory: Trajectory, ids: Ids, started: float) -> None:
        self.trajectory = trajectory
        self.context = Context(ids, trajectory)
        self.turn = 0
        self.started = started
        self.waited = 0.0
        self.idle_since: float | None = None
        self.record: RequestRecord | None = None


class Simulation:
    """Replays trajectories once; `run` may be interrupted, ``outcome`` then holds what is done.

    Args:
        run: the parameters.
        trajectories: scaled, every gap known, no context above what the pool can hold; started in this order.
        cost: step times, of the prefill server in PD.
        on_request: called with every answered request.
    """

    def __init__(
        self,
        run: Run,
        trajectories: Sequence[Trajectory],
        cost: CostModel,
        on_request: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        self.outcome = Outcome()
        self._run, self._cost, self._on_request = run, cost, on_request
        self._waiting = deque(trajectories)
        self._total = sum(len(item.turns) for item in trajectories)
        self._longest = max((item.peak_tokens for item in trajectories), default=0)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._ids, self._facts, self._demand = Ids(), Facts(), Demand()
        self._agents: dict[str, _Agent] = {}
        completion = run.baseline.completion
        self._completion = run.completion if completion is None else completion

    def run(self) -> Outcome:
        """Simulate to the end. Raises SimulationError."""
        run = self._run
        if self._longest > run.capacity_tokens:
            raise SimulationError(
                f"a context of {self._longest} tokens exceeds the pool of {run.capacity_tokens}"
            )
        world = World(
            run.baseline,
            self._facts,
            capacity_tokens=run.capacity_tokens,
            rows=run.concurrency + 1,
            max_context=self._longest,
            now=lambda: self._now,
            server_args={"schedule_policy": Schedule.parse(run.settings.schedule).name},
        )
        with world:
            make = GuardedWorker if run.admission == "auto" else Worker
            worker = self._worker = make(
                world, self._cost, run.settings, self._ids.fresh, self._prefilled, self._answered
            )
            self._decoders = [
                DecodeWorker(self._cost, run.decode_capacity_tokens, self._generated, self._decoded)
                for _ in range(run.decode_workers)
            ]
            self._checks = Checks(worker) if run.check else None
            for number in range(run.concurrency):
                self._at(number * run.ramp_s / run.concurrency, self._next_trajectory)
            try:
                self._loop()
                self.outcome.finished = True
            finally:
                self._collect()
        if self._checks is not None:
            self._checks.end(self._total)
        return self.outcome

    # ---- events ----

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def _loop(self) -> None:
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()
            # Everything that happens at this moment comes before the next step is planned.
            if self._events and self._events[0][0] <= self._now:
                continue
            self._start_steps()
        if not self._worker.idle:
            raise SimulationError("the scheduler is stuck: requests wait, and nothing can run")

    def _start_steps(self) -> None:
        horizon = self._events[0][0] if self._events else float("inf")
        if self._worker.step is None:
            duration = self._worker.begin(self._now, horizon)
            if self._checks is not None:
                self._checks.step()
            if duration is not None:
                self._at(self._now + duration, self._step_over)
            elif self._worker.asks_again and horizon > self._now + ASK_S:
                self._at(self._now + ASK_S, lambda: None)
        for decoder in self._decoders:
            if not decoder.busy and (duration := decoder.begin(self._now, horizon)) is not None:
                self._at(self._now + duration, decoder.end)

    def _step_over(self) -> None:
        self._worker.end()
        if self._checks is not None:
            self._checks.step()
        allocator, cache = self._worker.allocator, self._worker.cache
        used = self._run.capacity_tokens - allocator.available_size()
        self._demand.sample(self._now, used, cache.evictable_size())

    # ---- agents ----

    def _next_trajectory(self) -> None:
        if self._waiting:
            trajectory = self._waiting.popleft()
            agent = self._agents[trajectory.trajectory_id] = _Agent(trajectory, self._ids, self._now)
            self._send(agent)

    def _send(self, agent: _Agent) -> None:
        """The agent's next request leaves; it reaches the scheduler after the cost model's ``request_s``."""
        trajectory, index = agent.trajectory, agent.turn
        turn = trajectory.turns[index]
        if agent.idle_since is not None:
            self._facts.returned(trajectory.trajectory_id, self._now - agent.idle_since)
        prompt, kept = agent.context.prompt(turn)
        self._demand.sent(trajectory, len(prompt) + turn.output_tokens)
        agent.record = RequestRecord(
            trajectory_id=trajectory.trajectory_id,
            source=trajectory.source,
            turn=index,
            kind=turn.kind,
            tool_name=turn.tool_name,
            sent_s=self._now,
            gap_s=(turn.gap_s or 0.0) if index else 0.0,
            prompt_tokens=len(prompt),
            history_tokens=kept,
            final=index + 1 == len(trajectory.turns),
            active_tokens=self._demand.active_tokens,
            live_tokens=self._demand.live_tokens,
        )
        req = self._request(agent, prompt)
        if self._cost.request_s:
            self._at(self._now + self._cost.request_s, lambda: self._worker.enqueue(req, self._now))
        else:
            self._worker.enqueue(req, self._now)

    def _request(self, agent: _Agent, prompt: Any) -> Req:
        trajectory, index = agent.trajectory, agent.turn
        output = trajectory.turns[index].output_tokens
        payload = self._hints(trajectory, index)
        wanted = self._run.max_new_tokens or output
        req = Req(
            rid=f"{trajectory.trajectory_id}/{index}",
            origin_input_text="",
            origin_input_ids=prompt,
            sampling_params=SamplingParams(
                # A prefill server is asked for one token (SGLang: PrefillBootstrapQueue).
                max_new_tokens=1 if self._run.decode_workers else max(wanted, output),
                ignore_eos=self._run.max_new_tokens is None,
                custom_params=payload,
            ),
            session_id=trajectory.trajectory_id if self._run.baseline.session_references else None,
        )
        req.agent_output_tokens = output
        req.agent = agent
        return req

    def _hints(self, trajectory: Trajectory, index: int) -> dict[str, Any]:
        """What the server knows of the request: as a client sends it, or as it reads it off the answer."""
        heard = not self._run.baseline.blind
        payload = hint(trajectory, index, oracle=self._run.baseline.truth, tool_calls=heard)
        said = payload["agentcache"]
        if heard and index + 1 < len(trajectory.turns) and trajectory.turns[index + 1].kind == "user":
            # The answer holds no tool call.
            said["tool_calls"] = []
        if not self._completion:
            said["final"] = False
        return payload

    def _prefilled(self, req: Req) -> bool:
        """A request's prompt is through and its next token is there; whether it stays on this server."""
        record = req.agent.record
        stays = not self._decoders
        if record.ttft_s is None:
            record.cached_tokens = req.cached_tokens
            if stays:
                record.ttft_s = self._now - record.sent_s
        if not stays:
            decoder = min(self._decoders, key=lambda item: item.load)
            self._expect_return(req.agent, self._now)
            decoder.reserve(
                req, lambda: self._at(self._now + self._transfer_s(req), lambda: self._moved(req, decoder))
            )
        return stays

    def _answered(self, req: Req, error: str | None) -> None:
        """The last token of a request has reached its client, or it failed."""
        agent, record = req.agent, req.agent.record
        if self._checks is not None:
            self._checks.served(req.rid)
        trajectory = agent.trajectory
        last = record.final or error is not None
        self._demand.answered(trajectory, last)
        record.output_tokens = len(req.output_ids)
        record.latency_s = self._now - record.sent_s
        record.error = error
        self.outcome.requests.append(record)
        self.outcome.makespan_s = self._now
        self._on_request(record)
        if last:
            self._facts.next_use.pop(trajectory.trajectory_id, None)
            del self._agents[trajectory.trajectory_id]
            if error is None:
                self.outcome.session_s.append(self._now - agent.started - agent.waited)
            if self._run.baseline.session_references and self._completion:
                # Upstream's client closes its session (POST /close_session).
                self._at(self._now, lambda: self._close_session(trajectory.trajectory_id))
            self._at(self._now, self._next_trajectory)
            return
        agent.context.answered(req.origin_input_ids, req.output_ids)
        agent.turn += 1
        gap = trajectory.turns[agent.turn].gap_s or 0.0
        agent.waited += gap
        agent.idle_since = self._now
        self._facts.next_use[trajectory.trajectory_id] = self._now + gap
        self._at(self._now + gap, lambda: self._send(agent))

    def _close_session(self, trajectory_id: str) -> None:
        self._worker.cache.release_radix_session(trajectory_id)

    # ---- PD ----

    def _transfer_s(self, req: Req) -> float:
        return TRANSFER_LATENCY_S + len(req.origin_input_ids) * self._run.transfer_s_per_token

    def _expect_return(self, agent: _Agent, now: float) -> None:
        """The prefill server's idle time starts before the answer is complete: estimate when it will end."""
        turns = agent.trajectory.turns
        if agent.turn + 1 < len(turns):
            output = turns[agent.turn].output_tokens
            decode_s = float(self._cost.decode(1, turns[agent.turn].prompt_tokens, 1)[0]) * output
            self._facts.next_use[agent.trajectory.trajectory_id] = (
                now + decode_s + (turns[agent.turn + 1].gap_s or 0)
            )

    def _moved(self, req: Req, decoder: DecodeWorker) -> None:
        """The KV has arrived at the decode server, with the first token."""
        req.agent.record.ttft_s = self._now - req.agent.record.sent_s
        self._worker.transferred(req)
        decoder.add(req)

    def _generated(self, req: Req, count: int) -> None:
        req.output_ids.extend(self._ids.fresh(count))

    def _decoded(self, req: Req) -> None:
        self._answered(req, None)

    # ---- results ----

    def _collect(self) -> None:
        outcome, worker = self.outcome, self._worker
        outcome.prefill_tokens = worker.prefill_tokens
        outcome.retractions = worker.retractions
        outcome.evicted_tokens = worker.cache.evicted_tokens
        agent_cache = worker.world.agent_cache
        if agent_cache is not None:
            outcome.released_tokens = agent_cache.stats["released_tokens"]
            outcome.cache_stats = {name: int(count) for name, count in sorted(agent_cache.stats.items())}
        if isinstance(worker, GuardedWorker):
            outcome.door = worker.door.state()
        outcome.pressure = self._demand.series(self._run.capacity_tokens)
