"""`--schedule-policy prefix-aware`: SGLang's schedule policy object, with the order of `order.py`.

Target: SGLang 0.5.23, `schedule_policy.SchedulePolicy` and `PrefillAdder`. Works with any prefix cache.

SGLang's cache-aware policies match every waiting request with the cache at every step, and give up above 128 of
them. Here a request is matched when it comes, and again just before it could be served, if that is some steps
later; one other per step is matched again in turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from sglang.srt.environ import envs
from sglang.srt.managers.schedule_policy import (
    CLIP_MAX_NEW_TOKENS,
    IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD,
    IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD,
    WAITING_QUEUE_PREFIX_MATCH_MAX,
    AddReqResult,
    CacheAwarePolicy,
    PrefillAdder,
    SchedulePolicy,
)
from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_disagg

from . import order
from .order import Key, Order

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

MATCHES = 32
"""Matches per step, at most."""
MATCHES_OF_MANY = 8
"""Of a queue too long for SGLang's own policies, which takes long to serve: after a burst, many steps match so many."""
FRESH_PASSES = 8
"""A match is not repeated before so many steps have passed."""
MAX_DEFERRED = 32
"""Requests per step that may be put behind one with the same cold prefix."""


class Place:
    """What is known of a waiting request; an attribute of the request, so that it goes when that goes."""

    __slots__ = ("arrival", "key", "matched", "number", "offered", "prefix", "priority", "work")

    def __init__(self, req: Req, number: int, priority: int, patience: float) -> None:
        self.number, self.priority = number, priority
        self.arrival: int = req.arrival_processed_tokens
        self.work = max(1, _length(req))
        self.matched = 0
        """The pass that matched it last; 0: none yet, so all of it counts as new."""
        self.offered = -FRESH_PASSES
        """The pass that last made room for it beside a prefill under way."""
        self.prefix: object = None
        """What it shares with others if it has nothing in the cache."""
        self.key = order.key(priority, self.arrival, self.work, number, patience)


def _length(req: Req) -> int:
    return len(req.origin_input_ids) + len(req.output_ids)


def _place(req: Req) -> Place:
    place: Place = req.agentcache_place
    return place


class PrefixAwarePolicy(SchedulePolicy):
    """Orders the waiting queue.

    Args:
        patience: see `order`; infinite for CacheWise's order.
        batch_tokens: what one prefill batch can take; so far into the queue, matches are kept fresh.

    Raises:
        ValueError: there is no prefix cache.
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
            raise ValueError(f"--schedule-policy {order.PREFIX_AWARE} needs the prefix cache")
        # To the superclass it is fcfs, an order that needs no match.
        super().__init__(
            "fcfs",
            tree_cache,
            enable_hierarchical_cache,
            enable_priority_scheduling,
            schedule_low_priority_values_first,
        )
        self._patience, self._batch_tokens = patience, batch_tokens
        self._order: Order[Req] = Order()
        self._arrivals = self._pass = self._cursor = self._now = 0
        self._unmatched: deque[Req] = deque()
        """Those never matched yet, first come first, and some that have left or were matched out of turn."""
        self._deferred: list[Req] = []
        self._walks_device_only = (
            isinstance(tree_cache, UnifiedRadixCache)
            and tree_cache.tree_components == (ComponentType.FULL,)
            and tree_cache.linker is None
            and not tree_cache.tree_core.enable_hicache
            and not envs.SGLANG_RADIX_FORCE_MISS.get()
        )

    # ---- what SGLang calls ----

    def calc_priority(
        self, waiting_queue: list[Req], running_batch: ScheduleBatch | None = None, processed_tokens: int = 0
    ) -> None:
        """Sort the queue, in place."""
        if get_disagg().disaggregation_mode == "decode":
            # Nothing is prefilled here.
            super().calc_priority(waiting_queue, running_batch, processed_tokens)
            return
        self._pass += 1
        self._now = processed_tokens
        new = self._order.follow(waiting_queue)
        for req in new:
            self._enter(req)
        if len(waiting_queue) > 1:
            self._refresh()
            waiting_queue[:] = self._order.items
        else:
            # Nothing to order. If others come before it is served, it is matched then.
            self._unmatched = deque(req for req in waiting_queue if not _place(req).matched)
        self._touch_waiting_prefixes(self.policy, waiting_queue)

    def waiting_queue_prefix_matched(self, waiting_queue: list[Req]) -> bool:
        # The load report that follows each prefill would read the match of every waiting request. Of a long queue it
        # takes the estimate from the hit rate, as it does where SGLang's own policies stop matching.
        return len(waiting_queue) <= WAITING_QUEUE_PREFIX_MATCH_MAX

    def shortest_prefill_chunk_limit(
        self, chunked_req: Req, waiting_queue: list[Req], budget: int, page_size: int
    ) -> int | None:
        """What a long prefill under way may take of this batch, if requests that go before it wait."""
        mine: Place | None = getattr(chunked_req, "agentcache_place", None)
        if mine is None or not waiting_queue or budget < 2 * page_size:
            return None
        rest = len(chunked_req.full_untruncated_fill_ids) - chunked_req.prefix_len
        own = order.key(mine.priority, mine.arrival, rest, mine.number, self._patience)
        if own.rank <= self._now and self._ages:
            own = Key(own.priority, order.DUE, own.number, own.number)
        offered: list[Place] = []
        reserved = 0
        if len(waiting_queue) == 1 and self._is_old(_place(waiting_queue[0])):
            # A pass leaves a lone request alone.
            self._rematch(0)
        for req in waiting_queue:
            place = _place(req)
            charge = -(-place.work // page_size) * page_size
            if place.key >= own or reserved + charge > budget - page_size:
                break
            if 0 < self._pass - place.offered < FRESH_PASSES:
                # It did not take the room it had: memory is short, and the prefill under way must go on to give some.
                break
            reserved += charge
            offered.append(place)
        for place in offered:
            place.offered = self._pass
        return (budget - reserved) // page_size * page_size if reserved else None

    def left(self, req: Req) -> None:
        """A request has ended; what has only left the queue is let go of in the next pass."""
        place: Place | None = getattr(req, "agentcache_place", None)
        position = None if place is None else self._order.find(req, place.key)
        if position is not None:
            self._order.take(position)
        if not self._order.items:
            self._unmatched.clear()
        self._deferred = [other for other in self._deferred if other is not req]

    # ---- a pass ----

    @property
    def _ages(self) -> bool:
        return self._patience != float("inf")

    def _enter(self, req: Req) -> None:
        place: Place | None = getattr(req, "agentcache_place", None)
        # Not new if the queue has only been shuffled; a retracted request comes with another stamp.
        if place is None or place.arrival != req.arrival_processed_tokens:
            priority = req.priority * self.priority_sign if self.enable_priority_scheduling else 0
            self._arrivals += 1
            place = Place(req, self._arrivals, priority, self._patience)
            req.agentcache_place = place
            self._unmatched.append(req)
        self._order.add(req, place.key)

    def _refresh(self) -> None:
        queue = self._order
        long = len(queue.items) > WAITING_QUEUE_PREFIX_MATCH_MAX
        budget = self._restore(MATCHES_OF_MANY if long else MATCHES)
        budget = self._match_new(budget)
        self._cursor = (self._cursor + 1) % len(queue.items)
        if _place(queue.items[self._cursor]).matched < self._pass:
            self._rematch(self._cursor)
        if self._ages:
            for req, at in queue.mark_due(self._now):
                _place(req).key = at
        self._settle_head(budget)

    def _restore(self, budget: int) -> int:
        """Put those deferred by the last pass back; the prefix they wait for may be there by now."""
        for req in self._deferred:
            position = self._order.find(req, _place(req).key)
            if position is None:
                continue
            if budget:
                self._rematch(position)
                budget -= 1
            else:
                self._move(position, self._waiting_key(_place(req)))
        self._deferred = []
        return budget

    def _match_new(self, budget: int) -> int:
        """Match those never matched yet, as far as the budget goes."""
        while budget and self._unmatched:
            req = self._unmatched.popleft()
            position = self._order.find(req, _place(req).key)
            if position is not None and not _place(req).matched:
                self._rematch(position)
                budget -= 1
        return budget

    def _settle_head(self, budget: int) -> None:
        """Match again what this batch would take, and let duplicates of a cold prefix wait for the first.

        As SGLang's cache-aware policies do: if one of them is about to be prefilled, the others gain by waiting
        until its prefix is in the cache. A request that is due waits for nobody.
        """
        queue = self._order
        tokens = position = 0
        leaders: set[object] = set()
        while position < len(queue.items) and tokens < self._batch_tokens:
            req = queue.items[position]
            place = _place(req)
            if budget and self._is_old(place):
                self._rematch(position)
                budget -= 1
                continue
            if place.prefix is not None:
                if place.prefix in leaders and place.key.group == order.WAITS:
                    if len(self._deferred) == MAX_DEFERRED:
                        return
                    self._move(position, place.key._replace(group=order.DEFERRED))
                    self._deferred.append(req)
                    continue
                leaders.add(place.prefix)
            tokens += place.work
            position += 1

    # ---- one request ----

    def _is_old(self, place: Place) -> bool:
        return not place.matched or self._pass - place.matched >= FRESH_PASSES

    def _waiting_key(self, place: Place) -> Key:
        if place.key.group == order.DUE:
            return place.key
        return order.key(place.priority, place.arrival, place.work, place.number, self._patience)

    def _move(self, position: int, at: Key) -> None:
        req = self._order.take(position)
        _place(req).key = at
        self._order.add(req, at)

    def _rematch(self, position: int) -> None:
        req = self._order.items[position]
        self._match(req)
        self._move(position, self._waiting_key(_place(req)))

    def _match(self, req: Req) -> None:
        """Count what is resident of a request."""
        place = _place(req)
        place.matched = self._pass
        if req.positional_embed_overrides is not None:
            # SGLang gives it no cached prefix.
            return
        length = _length(req)
        if self._walks_device_only and req.session is None:
            tokens = req.origin_input_ids + req.output_ids if req.output_ids else req.origin_input_ids
            found, _, _ = self.tree_cache.tree_core.match_full_device_prefix(
                RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt)
            )
            req.num_matched_prefix_tokens = min(found, req._compute_max_prefix_len(length))
        else:
            match_kv_cache(req, self.tree_cache)
            found = req.prefix_len
        place.work = max(1, length - req.num_matched_prefix_tokens)
        size = IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD
        cold = found <= IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD and len(req.origin_input_ids) >= size > 0
        place.prefix = (
            (req.origin_input_ids[:size].tobytes(), req.extra_key, req.cache_salt) if cold else None
        )


class SharingAdder(PrefillAdder):
    """Shares a batch between a long prefill under way and requests that go before it.

    SGLang's adder admits nothing beside an unfinished prefill, unless `shortest_prefill_chunk_limit` makes room.
    Then two of its assumptions fail: that a second prefill is never left unfinished (it tracks a single one), and
    that the memory which the first was promised is still there for its next chunk. SGLang's own
    `shortest-prefill-first` plans more tokens than there are because of the second.
    """

    def add_chunked_req(self, req: Req) -> Req | None:
        left_room_in: list[Req] | None = getattr(req, "agentcache_left_room_in", None)
        if left_room_in is not None and len(left_room_in) == 1:
            # Nobody took the room that it left in that batch: memory is short, and it must go on to give some.
            self.chunked_req_limit: int | None = None
        req.agentcache_left_room_in = self.can_run_list if self.chunked_req_limit is not None else None
        unfinished: Req | None = super().add_chunked_req(req)
        if unfinished is not None:
            done = max(req.prefix_len, req.extend_end or 0)
            rest = self.ceil_paged_tokens(len(req.full_untruncated_fill_ids) - done)
            self.memory_budget.current_offset += rest
            self.memory_budget.total_offset += rest + min(
                req.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKENS
            )
        else:
            req.agentcache_left_room_in = None
        return unfinished

    def _select_prefill_admission(self, req: Req, **given: Any) -> Any:
        admission = super()._select_prefill_admission(req, **given)
        if given.get("has_chunked_req") and getattr(admission, "is_chunked", False):
            return AddReqResult.OTHER
        return admission


def adder_class(policy: SchedulePolicy) -> type[PrefillAdder]:
    """What fills the batches of this policy (`Scheduler.get_prefill_adder_class`)."""
    shares = isinstance(policy, PrefixAwarePolicy) or policy.policy == CacheAwarePolicy.SHORTEST_PREFILL_FIRST
    return SharingAdder if shares else PrefillAdder
