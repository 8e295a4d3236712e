"""SGLang's scheduler with the door of `admission.py` in front of its prefill.

Target: SGLang 0.5.23, `Scheduler._get_new_batch_prefill_raw`. Requests at the door stay in SGLang's own waiting
queue, so that aborts, timeouts, limits, metrics and idle checks see them as ever; only while a batch is being planned
they are out of it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.scheduler import Scheduler

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.flags import admission

from .admission import Door
from .overcommit import Overcommit, bearable

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

logger = logging.getLogger(__name__)


class GuardedScheduler(Scheduler):
    """Holds first requests of new trajectories back (`--agentcache-admission auto`)."""

    door: Door | None = None
    waiting_queue: list[Req]
    _outside: list[Req]
    """Requests at the door. While a batch is being planned they are out of the queue; else they stand in it behind
    `_ahead` others, as far as nobody has left."""
    _ahead = 0
    _planning = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outside = []
        if admission() == "off":
            return
        cache = self.tree_cache
        if not isinstance(cache, AgentRadixCache):
            logger.warning("agentcache: no admission control: it needs this package's cache")
        elif self.disaggregation_mode != DisaggregationMode.NULL:
            logger.warning(
                "agentcache: no admission control on %s workers: a request that waits at a prefill worker "
                "already holds memory of its decode worker",
                self.disaggregation_mode.value,
            )
        else:
            # What is on the device is on the host, too, or will be; from storage all comes back.
            kept_tokens = math.inf if self.enable_hicache_storage else cache.host_tokens
            pool_tokens = self.max_total_num_tokens
            overcommit = Overcommit(bearable(self.schedule_policy), max(1.0, kept_tokens / pool_tokens))
            self.door = Door(
                cache.table, pool_tokens, cache.clock.now, overcommit, overlapped=self.enable_overlap
            )

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        if self.door is not None:
            self.door.arrived(req)
        super()._add_request_to_queue(req, is_retracted)
        if self._planning and self.waiting_queue and self.waiting_queue[-1] is req:
            # Its grammar became ready while a batch is being planned: too late for the door to decide.
            self._outside.append(self.waiting_queue.pop())

    def _get_new_batch_prefill_raw(
        self, prefill_delayer_single_pass: Any, running_batch: ScheduleBatch
    ) -> tuple[ScheduleBatch | None, ScheduleBatch]:
        door = self.door
        if door is None:
            return super()._get_new_batch_prefill_raw(prefill_delayer_single_pass, running_batch)
        if self._takes_nobody(running_batch):
            # Who is let in can be decided when somebody could run.
            door.decodes(len(running_batch.reqs))
            return super()._get_new_batch_prefill_raw(prefill_delayer_single_pass, running_batch)
        self._hold(door, running_batch)
        self._planning = True
        try:
            batch, running_batch = super()._get_new_batch_prefill_raw(
                prefill_delayer_single_pass, running_batch
            )
        finally:
            self._planning = False
            self._ahead = len(self.waiting_queue)
            self.waiting_queue += self._outside
        if batch is None:
            door.runs((), decoding=len(running_batch.reqs), idle=running_batch.is_empty())
        else:
            # Those that a mixed batch decodes stand at its end.
            extended = len(batch.reqs) - len(batch.decoding_reqs or ())
            door.runs(batch.reqs[:extended], decoding=0, idle=False)
        return batch, running_batch

    def _hold(self, door: Door, running_batch: ScheduleBatch) -> None:
        """Let in whom the door lets in, and take out of the queue those that it holds."""
        idle = bool(door.waiting) and self._runs_nothing(running_batch)
        if idle:
            door.forget_lost()
        entered = door.enter(idle=idle and len(self.waiting_queue) == door.waiting)
        for req in entered:
            # Schedule policies age requests by it; at the door they were not in anybody's way.
            req.arrival_processed_tokens = self.processed_tokens_counter
        # Mostly those held stand where they stood, with the new ones behind them: comparing lists compares
        # identities, in C; reading an attribute of 2,000 requests takes as long as the rest of a step.
        queue, outside, ahead = self.waiting_queue, self._outside, self._ahead
        if not outside and not door.waiting:
            return
        if (
            not outside
            or queue[ahead : ahead + len(outside)] != outside
            or outside[: len(entered)] != entered[: len(outside)]
        ):
            outside, ahead = [], 0
        behind = ahead + len(outside)
        outside = outside[len(entered) :]
        inside = queue[: behind - len(outside)]
        for req in queue[behind:]:
            (outside if req.rid in door else inside).append(req)
        self.waiting_queue, self._outside = inside, outside

    def _takes_nobody(self, running_batch: ScheduleBatch) -> bool:
        """Whether the superclass plans no prefill without a look at the queue."""
        return bool(
            running_batch.batch_is_full
            and self.chunked_req is None
            and not self.enable_priority_preemption
            and not self.is_hybrid_swa
            and not running_batch.is_empty()
        )

    def _runs_nothing(self, running_batch: ScheduleBatch) -> bool:
        return bool(
            running_batch.is_empty()
            and self.chunked_req is None
            and (self.last_batch is None or self.last_batch.is_empty())
            and self._pp_microbatches_drained()
        )
