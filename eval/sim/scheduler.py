"""One simulated SGLang worker: scheduling steps over the real cache, with times from a cost model.

Driven as they are (SGLang 0.5.23): `SchedulePolicy`, `PrefillAdder`, `NewTokenRatioTracker`, `Req`, the
allocator, the cache's `checkpoint`, `release_kv_cache` and `ScheduleBatch.check_decode_mem` /
`retract_decode`. Written here, because upstream's needs a GPU worker: the loop around them
(`Scheduler.get_next_batch_to_run`, `_get_new_batch_prefill_raw`, `update_running_batch`), index writing
(`alloc_for_extend`, `alloc_for_decode`, page size 1) and what follows a step
(`SchedulerBatchResultProcessor`).

Without ``Settings.overlap`` a step's results are known when the next one is planned, as with
`Scheduler.event_loop_normal`. On a GPU that gives the times of SGLang's default loop, but for the planning,
which is one step earlier there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import AddReqResult, SchedulePolicy
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, release_kv_cache
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from eval.sim.cost import CostModel
from eval.sim.schedules import Schedule
from eval.sim.world import PAGE_SIZE, World
from sglang_agentcache.scheduling.prefix_aware import PrefixAwarePolicy, adder_class

MAX_BURST = 512
"""Decode steps that are taken at once when nothing can happen in between."""


class SimulationError(RuntimeError):
    """The simulation cannot go on, or an invariant does not hold: a bug, here or in the cache."""


@dataclass(frozen=True)
class Settings:
    """SGLang's server arguments of one worker. ``schedule``: as `eval.sim.schedules` names them."""

    schedule: str = "fcfs"
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16_384
    overlap: bool = False
    """`Scheduler.event_loop_overlap` on a device that computes while the host waits (the CPU): results of a
    step are looked at, and reach the clients, when the step after it is over or there is none."""


class DecodeBatch(ScheduleBatch):
    """SGLang's batch without tensors: only its list of requests changes."""

    reqs: list[Req]

    def filter_batch(self, reqs_to_exclude: Any = None, keep_indices: list[int] | None = None) -> None:
        assert reqs_to_exclude is None
        if keep_indices is None:
            self.reqs = [req for req in self.reqs if not req.finished()]
        else:
            self.reqs = [self.reqs[index] for index in keep_indices]


@dataclass
class Step:
    """A step in progress. ``tokens``: how many each request of the batch decodes, 0 for a prefill step.
    ``partial``: the request whose prompt goes on in the next step."""

    reqs: list[Req]
    duration_s: float
    tokens: int
    partial: Req | None = None

    def gives(self, req: Req) -> int:
        """Output tokens that the request gets from this step."""
        return (self.tokens or 1) if req in self.reqs and req is not self.partial else 0


class Worker:
    """The scheduler of one server.

    Args:
        world: its memory.
        cost: step times.
        settings: its server arguments.
        fresh_ids: makes output token ids.
        prefilled: called for each request whose first token is there; True keeps it here for decoding, False
            means that it leaves for a decode worker and the caller calls `transferred` in time.
        finished: called for each request whose last token is there, with None or why it failed.
    """

    def __init__(
        self,
        world: World,
        cost: CostModel,
        settings: Settings,
        fresh_ids: Callable[[int], array[int]],
        prefilled: Callable[[Req], bool],
        finished: Callable[[Req, str | None], None],
    ) -> None:
        self.world, self.cost, self.settings = world, cost, settings
        self.cache, self.allocator, self.rows = world.cache, world.allocator, world.requests
        self._fresh_ids, self._prefilled, self._finished = fresh_ids, prefilled, finished
        self.waiting: list[Req] = []
        self.transferring: list[Req] = []
        self.running = DecodeBatch(
            reqs=[],
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.cache,
            device="cpu",
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
        self.step: Step | None = None
        self._last: Step | None = None
        self._unseen: Step | None = None
        self._chunked: Req | None = None
        self._policy = self._schedule_policy()
        self._adder = adder_class(self._policy)
        self._ratio = NewTokenRatioTracker.from_config()
        self._processed_tokens = 0
        self.prefill_tokens = 0
        self.retractions = 0

    def _schedule_policy(self) -> SchedulePolicy:
        schedule = Schedule.parse(self.settings.schedule)
        if schedule.patience is None:
            return SchedulePolicy(schedule.name, self.cache, False, False, False)
        return PrefixAwarePolicy(
            self.cache, patience=schedule.patience, batch_tokens=self.settings.chunked_prefill_size
        )

    @property
    def asks_again(self) -> bool:
        """Whether the same step might be planned later though nothing happens meanwhile."""
        return False

    # ---- requests ----

    def enqueue(self, req: Req, now: float) -> None:
        """A request enters the queue, or enters it again (`Scheduler._add_request_to_queue`)."""
        agent_cache = self.world.agent_cache
        if agent_cache is not None:
            agent_cache.request_arrived(req)
        elif self.world.baseline.session_references and req.session_generation is None:
            req.session_generation = self.cache.ensure_session_generation(req.session_id)
        req.time_stats.wait_queue_entry_time = now
        req.arrival_processed_tokens = self._processed_tokens
        self.waiting.append(req)

    def transferred(self, req: Req) -> None:
        """PD: a decode worker holds the request's KV now (`process_disagg_prefill_inflight_queue`)."""
        self.transferring.remove(req)
        self._release(req)

    def holders(self) -> list[Req]:
        """Every request that may hold KV."""
        steps = [step for step in (self.step, self._last, self._unseen) if step is not None]
        in_steps = [req for step in steps for req in step.reqs if not req.finished()]
        chunked = [self._chunked] if self._chunked is not None else []
        listed = [*self.waiting, *self.running.reqs, *self.transferring, *in_steps, *chunked]
        return list({req.rid: req for req in listed}.values())

    @property
    def idle(self) -> bool:
        """Nothing is queued, running or in transfer."""
        return not self.holders()

    # ---- steps ----

    def begin(self, now: float, horizon: float) -> float | None:
        """Start the next step.

        Args:
            horizon: when something else happens next; decode steps before it are taken in one go.

        Returns:
            its duration in seconds, or None if there is nothing to do.
        """
        assert self.step is None
        self.step = self._plan(now, horizon)
        if self.step is None and self._unseen is not None:
            self._look()
            self.step = self._plan(now, horizon)
        return None if self.step is None else self.step.duration_s

    def _plan(self, now: float, horizon: float) -> Step | None:
        """Scheduler.get_next_batch_to_run."""
        if self._chunked is not None and self._chunked.extend_end > self._chunked.prefix_len:
            checkpoint_kv_cache(self._chunked, self.cache)
        last, self._last = self._last, None
        joining = last.reqs if last is not None and not last.tokens else []
        before = len(self.running.reqs) + len(joining)
        for req in joining:
            if last is not None and req is not last.partial and req not in self.transferring:
                self.running.reqs.append(req)
        self.running.filter_batch()
        if len(self.running.reqs) < before:
            self.running.batch_is_full = False
        return self._prefill() or self._decode(now, horizon)

    def end(self) -> None:
        """The step is over: tokens are there, requests finish (with overlap, those of the step before)."""
        self._last, self.step = self.step, None
        assert self._last is not None
        self._look()
        self._unseen = self._last
        if not self.settings.overlap:
            self._look()
        elif self._last.tokens > 1:
            # Several decode steps: all but the last one have been looked at.
            self._unseen = replace(self._last, tokens=self._last.tokens - 1)
            self._look()
            self._unseen = replace(self._last, tokens=1)

    def _look(self) -> None:
        """Scheduler.process_batch_result."""
        step, self._unseen = self._unseen, None
        if step is None:
            return
        # As upstream: one allocator free for all requests of a batch.
        self.allocator.free_group_begin()
        try:
            if step.tokens:
                self._decoded(step)
            else:
                self._extended(step)
        finally:
            self.allocator.free_group_end()

    def _release(self, req: Req) -> None:
        req.finished_reason = FINISH_LENGTH(len(req.output_ids))
        release_kv_cache(req, self.cache, checkpoint=True)

    # ---- prefill ----

    def _prefill(self) -> Step | None:
        """Scheduler._get_new_batch_prefill_raw, without what needs LoRA, HiCache, Mamba or preemption."""
        running = self.running
        if not running.reqs:
            running.batch_is_full = False
        if (running.batch_is_full or not self.waiting) and self._chunked is None:
            return None
        self._policy.calc_priority(self.waiting, running, processed_tokens=self._processed_tokens)
        adder = self._adder(
            PAGE_SIZE,
            self.cache,
            self.allocator,
            running,
            self._ratio.current,
            self.settings.max_prefill_tokens,
            self.settings.chunked_prefill_size,
            waiting_queue_len=len(self.waiting),
        )
        if self._chunked is not None:
            self._chunked.init_next_round_input()
            adder.chunked_req_limit = self._policy.shortest_prefill_chunk_limit(
                self._chunked, self.waiting, adder.rem_chunk_tokens or 0, PAGE_SIZE
            )
            self._chunked = adder.add_chunked_req(self._chunked)
        for req in self.waiting:
            if adder.budget_state() == AddReqResult.OTHER:
                break
            req.init_next_round_input(self.cache)
            result = adder.add_one_req(
                req, has_chunked_req=self._chunked is not None, truncation_align_size=None
            )
            if result != AddReqResult.CONTINUE:
                if result == AddReqResult.NO_TOKEN:
                    running.batch_is_full = bool(adder.can_run_list or running.reqs)
                break
        admitted: list[Req] = adder.can_run_list
        if not admitted:
            return None
        rids = {req.rid for req in admitted}
        self.waiting = [req for req in self.waiting if req.rid not in rids]
        if adder.new_chunked_req is not None:
            assert self._chunked is None
            self._chunked = adder.new_chunked_req
        self._allocate(admitted)
        extends = [(req.prefix_len, req.extend_len) for req in admitted]
        tokens = sum(new for _, new in extends)
        self._processed_tokens += tokens
        self.prefill_tokens += tokens
        return Step(admitted, self.cost.prefill(extends), 0, self._chunked)

    def _allocate(self, reqs: list[Req]) -> None:
        """alloc_for_extend and what prepare_for_extend notes on the requests, page size 1."""
        prefixes = [
            None if req.kv.holds_kv or req.prefix_len == 0 else self.cache.prefix_device_indices(req)
            for req in reqs
        ]
        if self.rows.alloc(reqs) is None:
            raise SimulationError(f"no row for {len(reqs)} requests: {self.rows.available_size()} are free")
        slots = self._alloc(sum(req.extend_len for req in reqs))
        start = 0
        for req, prefix in zip(reqs, prefixes, strict=True):
            row = req.kv.req_pool_idx
            if prefix is not None:
                self.rows.write((row, slice(0, req.prefix_len)), prefix)
            self.rows.write(
                (row, slice(req.prefix_len, req.extend_end)), slots[start : start + req.extend_len]
            )
            start += req.extend_len
            if not req.retracted_stain:
                req.cached_tokens += req.prefix_len - req.already_computed
                req.already_computed = req.extend_end
            req.is_retracted = False
            req.kv.kv_allocated_len = req.kv.kv_committed_len = req.extend_end

    def _alloc(self, tokens: int) -> Any:
        """alloc_token_slots: evict the shortfall, then take slots."""
        evict_from_tree_cache(self.cache, tokens)
        slots = self.allocator.alloc(tokens)
        if slots is None:
            raise SimulationError(
                f"{tokens} slots wanted, {self.allocator.available_size()} free after eviction: "
                f"{self.cache.available_and_evictable_str()}"
            )
        return slots

    def _extended(self, step: Step) -> None:
        for req in step.reqs:
            if req is step.partial or req.is_retracted:
                continue
            req.output_ids.extend(self._fresh_ids(1))
            stays = self._prefilled(req)
            if stays and len(req.output_ids) >= req.agent_output_tokens:
                self._finish(req)
                continue
            checkpoint_kv_cache(req, self.cache)
            if not stays:
                self.transferring.append(req)

    # ---- decode ----

    def _decode(self, now: float, horizon: float) -> Step | None:
        """Scheduler.update_running_batch, for as many steps as nothing else can come in between."""
        batch = self.running
        if not batch.reqs:
            return None
        before = len(batch.reqs)
        unseen = self._unseen
        left = {
            req.rid: req.agent_output_tokens - len(req.output_ids) - (unseen.gives(req) if unseen else 0)
            for req in batch.reqs
        }
        # Those whose last token is among results not yet looked at (`_reqs_finishing_inflight`).
        batch.reqs = [req for req in batch.reqs if left[req.rid] > 0]
        finishing = before - len(batch.reqs)
        if not batch.reqs:
            batch.batch_is_full = False
            return None
        if not batch.check_decode_mem():
            if finishing:
                # They free their KV first.
                batch.batch_is_full = False
                return None
            retracted, self._ratio.current, aborted = batch.retract_decode()
            self.retractions += len(retracted)
            for req in retracted:
                self.enqueue(req, now)
            for req in aborted:
                req.finished_reason = req.to_finish
                self._leave(req)
                self._finished(req, "out of memory even after retracting all other requests")
        if len(batch.reqs) < before:
            batch.batch_is_full = False
        if not batch.reqs:
            return None
        reqs = list(batch.reqs)
        # A first or a last token is waiting to be looked at after one more step.
        longest = 1 if finishing or (unseen is not None and not unseen.tokens) else MAX_BURST
        steps = min(longest, *(left[req.rid] for req in reqs))
        room = (self.allocator.available_size() + self.cache.evictable_size()) // len(reqs)
        steps = max(1, min(steps, room))
        context = sum(req.kv.kv_committed_len for req in reqs) + len(reqs)
        ends = np.cumsum(self.cost.decode(len(reqs), context, steps))
        # The step under way when something happens is the last one.
        steps = min(steps, int(np.searchsorted(ends, horizon - now)) + 1)
        slots = self._alloc(steps * len(reqs))
        for index, req in enumerate(reqs):
            length = req.kv.kv_committed_len
            self.rows.write(
                (req.kv.req_pool_idx, slice(length, length + steps)),
                slots[index * steps : (index + 1) * steps],
            )
            req.kv.kv_allocated_len = req.kv.kv_committed_len = length + steps
        self._ratio.current = max(self._ratio.current - steps * self._ratio.decay, self._ratio.min)
        return Step(reqs, float(ends[steps - 1]), steps)

    def _decoded(self, step: Step) -> None:
        for req in step.reqs:
            if req.is_retracted:
                continue
            req.output_ids.extend(self._fresh_ids(step.tokens))
            if len(req.output_ids) >= req.agent_output_tokens:
                self._finish(req)

    def _finish(self, req: Req) -> None:
        # The clients know first: a policy that is told the truth needs it when the request is released.
        self._finished(req, None)
        self._release(req)

    def _leave(self, req: Req) -> None:
        if self.world.agent_cache is not None:
            self.world.agent_cache.request_left(req.rid)
