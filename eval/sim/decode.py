"""A decode worker of a PD-disaggregated deployment: it holds KV while a request runs, and caches nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from sglang.srt.managers.schedule_batch import Req

from eval.sim.cost import CostModel
from eval.sim.scheduler import MAX_BURST


class DecodeWorker:
    """Runs whatever fits its KV pool, in order of arrival; a request's whole length is reserved when it is
    admitted.

    Args:
        capacity_tokens: its KV pool.
        generated: called as ``generated(req, count)`` with tokens that a request has got.
        finished: called for each request with its last token.
    """

    def __init__(
        self,
        cost: CostModel,
        capacity_tokens: int,
        generated: Callable[[Req, int], None],
        finished: Callable[[Req], None],
    ) -> None:
        self._cost, self._capacity = cost, capacity_tokens
        self._generated, self._finished = generated, finished
        self._running: list[Req] = []
        self._reserved: dict[str, int] = {}
        self._queue: deque[tuple[Req, Callable[[], None]]] = deque()
        self._steps = 0
        self.busy = False

    @property
    def load(self) -> int:
        """Tokens reserved or asked for."""
        return sum(self._reserved.values()) + sum(_length(req) for req, _ in self._queue)

    def reserve(self, req: Req, granted: Callable[[], None]) -> None:
        """Ask for room for a request (decode prealloc); ``granted`` is called once there is."""
        self._queue.append((req, granted))
        self._grant()

    def add(self, req: Req) -> None:
        """The request's KV has arrived."""
        self._running.append(req)

    def begin(self, now: float, horizon: float) -> float | None:
        """Start decode steps up to ``horizon``; returns their duration, or None if nothing runs."""
        if not self._running:
            return None
        batch = len(self._running)
        left = min(req.agent_output_tokens - len(req.output_ids) for req in self._running)
        steps = max(1, min(MAX_BURST, left))
        context = sum(len(req.origin_input_ids) + len(req.output_ids) for req in self._running)
        ends = np.cumsum(self._cost.decode(batch, context, steps))
        self._steps = min(steps, int(np.searchsorted(ends, horizon - now)) + 1)
        self.busy = True
        return float(ends[self._steps - 1])

    def end(self) -> None:
        """The steps are over."""
        self.busy = False
        stay = []
        for req in self._running:
            # A request of one token is complete when its KV arrives; it leaves with the next step.
            self._generated(req, min(self._steps, req.agent_output_tokens - len(req.output_ids)))
            if len(req.output_ids) < req.agent_output_tokens:
                stay.append(req)
                continue
            del self._reserved[req.rid]
            self._finished(req)
        self._running = stay
        self._grant()

    def _grant(self) -> None:
        while self._queue:
            req, granted = self._queue[0]
            if self._reserved and sum(self._reserved.values()) + _length(req) > self._capacity:
                return
            self._queue.popleft()
            self._reserved[req.rid] = _length(req)
            granted()


def _length(req: Req) -> int:
    return int(len(req.origin_input_ids) + req.agent_output_tokens)
