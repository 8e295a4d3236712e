"""`--schedule-policy prefix-aware`: SGLang's schedule policy object, with the order of `order.py`.

Target: SGLang 0.5.23, `schedule_policy.SchedulePolicy` and `PrefillAdder`. Works with any prefix cache; nothing
here reads this package's.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_policy import (
    IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD,
    IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD,
    AddReqResult,
    PrefillAdder,
    SchedulePolicy,
)
from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.runtime_context import get_disagg

from . import order

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

REMATCHES = 16
"""Matches per pass, at most. One of 50,000 tokens takes about 0.1 ms."""
PLACE = "agentcache_place"
_key_of = attrgetter(f"{PLACE}.key")


class Place:
    """What is known of a waiting request. Lives on the request, so that it goes when the request goes."""

    __slots__ = ("arrival", "cold", "deferred", "key", "matched", "number", "prefix", "priority", "work")

    def __init__(self, req: Req, number: int, priority: int) -> None:
        self.number, self.priority = number, priority
        self.arrival: int = req.arrival_processed_tokens
        self.work = max(1, _length(req))
        self.matched = 0
        """The pass that matched it last; 0: none did, and all of it counts as new."""
        self.cold = False
        self.deferred = False
        self.prefix: object = None
        self.key: order.Key


def _length(req: Req) -> int:
    return len(req.origin_input_ids) + len(req.output_ids)


class PrefixAwarePolicy(SchedulePolicy):
    """Orders the waiting queue by `order.key`.

    Args:
        patience: tokens of later arrivals that may overtake a request, per token of its own work.
        batch_tokens: what one prefill batch can take; so far into the queue, matches are kept fresh.
    """

    def __init__(
        self,
        tree_cache: Any,
        *,
        patience: float,
        batch_tokens: int,
        enable_hierarchical_cache: bool = False,
        enable_priority_scheduling: bool = False,
        schedule_low_priority_values_first: bool = False,
    ) -> None:
        if getattr(tree_cache, "disable", True):
            raise ValueError(
                f"--schedule-policy {order.PREFIX_AWARE} needs the prefix cache; drop --disable-radix-cache"
            )
        # To the superclass it is fcfs: an order that matches nothing itself.
        super().__init__(
            "fcfs",
            tree_cache,
            enable_hierarchical_cache,
            enable_priority_scheduling,
            schedule_low_priority_values_first,
        )
        self._patience, self._batch_tokens = patience, batch_tokens
        self._arrivals = self._pass = self._cursor = self._now = 0
        self._unmatched = False
        self._last: Req | None = None

    # ---- what SGLang calls ----

    def calc_priority(
        self, waiting_queue: list[Req], running_batch: ScheduleBatch | None = None, processed_tokens: int = 0
    ) -> None:
        """Sort the queue, in place."""
        if get_disagg().disaggregation_mode == "decode":
            super().calc_priority(waiting_queue, running_batch, processed_tokens)
            return
        self._pass += 1
        self._now = processed_tokens
        self._note_arrivals(waiting_queue)
        if len(waiting_queue) > 1:
            budget = self._match_new(waiting_queue, REMATCHES)
            self._cursor = (self._cursor + 1) % len(waiting_queue)
            self._match(waiting_queue[self._cursor])
            waiting_queue.sort(key=_key_of)
            self._mark_due(waiting_queue)
            self._settle_head(waiting_queue, budget)
        self._last = waiting_queue[-1] if waiting_queue else None
        self._touch_waiting_prefixes(self.policy, waiting_queue)

    def waiting_queue_prefix_matched(self, waiting_queue: list[Req]) -> bool:
        return True

    def shortest_prefill_chunk_limit(
        self, chunked_req: Req, waiting_queue: list[Req], budget: int, page_size: int
    ) -> int | None:
        """What a long prefill under way may take of this batch, if requests before it in the order wait."""
        place = getattr(chunked_req, PLACE, None)
        if place is None or not waiting_queue or budget < 2 * page_size:
            return None
        rest = len(chunked_req.full_untruncated_fill_ids) - chunked_req.prefix_len
        own = order.key(place.priority, place.arrival, rest, place.number, self._patience, self._now)
        reserved = 0
        for req in waiting_queue:
            if not req.agentcache_place.matched:
                self._match(req)
            charge = -(-req.agentcache_place.work // page_size) * page_size
            if req.agentcache_place.key >= own or reserved + charge > budget - page_size:
                break
            reserved += charge
        return (budget - reserved) // page_size * page_size if reserved else None

    # ---- keys ----

    def _note_arrivals(self, queue: list[Req]) -> None:
        new = []
        for req in reversed(queue):
            if req is self._last:
                break
            new.append(req)
        else:
            # The last one has left: who is new?
            new = [req for req in reversed(queue) if self._is_new(req)]
        for req in reversed(new):
            self._enter(req)

    @staticmethod
    def _is_new(req: Req) -> bool:
        place = getattr(req, PLACE, None)
        return place is None or place.arrival != req.arrival_processed_tokens

    def _enter(self, req: Req) -> None:
        priority = req.priority * self.priority_sign if self.enable_priority_scheduling else 0
        self._arrivals += 1
        place = Place(req, self._arrivals, priority)
        req.agentcache_place = place
        self._rank(place)
        self._unmatched = True

    def _rank(self, place: Place) -> None:
        place.key = order.key(
            place.priority, place.arrival, place.work, place.number, self._patience, self._now
        )

    def _match(self, req: Req) -> None:
        place = req.agentcache_place
        length = _length(req)
        if req.positional_embed_overrides is None:
            match_kv_cache(req, self.tree_cache)
            place.work = max(1, length - req.num_matched_prefix_tokens)
            place.cold = req.prefix_len <= IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD
            size = IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD
            if place.cold and place.prefix is None and len(req.origin_input_ids) >= size:
                place.prefix = (req.origin_input_ids[:size].tobytes(), req.extra_key, req.cache_salt)
        place.matched = self._pass
        self._rank(place)

    def _match_new(self, queue: list[Req], budget: int) -> int:
        if not self._unmatched:
            return budget
        for req in queue:
            if not req.agentcache_place.matched:
                if not budget:
                    return 0
                self._match(req)
                budget -= 1
        self._unmatched = False
        return budget

    def _mark_due(self, queue: list[Req]) -> None:
        import os

        if os.environ.get("ORDER_MODE", "strict") == "edf":
            return
        for req in queue:
            self._rank(req.agentcache_place)
        queue.sort(key=_key_of)

    def _settle_head(self, queue: list[Req], budget: int) -> None:
        """Match again what this batch would take, and let duplicates of a cold prefix wait for the first."""
        tokens = position = 0
        seen: set[object] = set()
        deferred = []
        while position < len(queue) and tokens < self._batch_tokens:
            req = queue[position]
            place = req.agentcache_place
            if budget and place.matched < self._pass and (not place.cold or place.deferred):
                self._match(req)
                budget -= 1
                del queue[position]
                insort(queue, req, lo=position, key=_key_of)
                continue
            place.deferred = place.cold and place.prefix in seen
            if place.deferred:
                deferred.append(queue.pop(position))
                continue
            if place.cold and place.prefix is not None:
                seen.add(place.prefix)
            tokens += place.work
            position += 1
        queue.extend(deferred)


class OneChunkedAdder(PrefillAdder):
    """Leaves a request out that would be the second unfinished one: SGLang tracks a single one."""

    def _select_prefill_admission(self, req: Req, **given: Any) -> Any:
        admission = super()._select_prefill_admission(req, **given)
        if given.get("has_chunked_req") and getattr(admission, "is_chunked", False):
            return AddReqResult.OTHER
        return admission
