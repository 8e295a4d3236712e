"""A request's life through SGLang's real cache, as its scheduler leads it, on the CPU and without a model.

Real: tree core (Rust or Python), cache, allocator, request pool, `Req`, and `srt/mem_cache/common.py`. What the
scheduler does between those calls (SGLang 0.5.23: `Scheduler`, `PrefillAdder`, `SchedulerBatchResultProcessor`)
is written out here in the same order. No forward pass runs, so the KV pool is as small as its class allows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sglang.srt.disaggregation.utils import prepare_abort
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.mem_cache.allocation import (
    alloc_paged_token_slots_decode,
    alloc_paged_token_slots_extend,
    alloc_token_slots,
)
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestOutcome, EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_agentcache.cache.radix_cache import AgentRadixCache
from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.serving.hints import KEY
from sglang_agentcache.trajectory.clock import Clock

CORES = ("rust", "python")
PAGE_SIZES = (1, 16, 64)

_config_published = False


def publish_sglang_config() -> None:
    """SGLang's process-wide settings for this process, once: its defaults on the CPU."""
    global _config_published
    if not _config_published:
        get_context().override_server_args(device="cpu").install()
        _config_published = True


class Server:
    """One cache, its pools, and what the scheduler does with a request.

    Args:
        core: "rust" or "python".
        page_size: tokens per page; 1 uses SGLang's token allocator, above that its paged one.
        capacity: KV slots, a multiple of `page_size`.
        config: ours, or None for a stock `UnifiedRadixCache`.
        eviction_policy: SGLang's order for memory that no trajectory owns (the only order of a stock cache).
    """

    def __init__(
        self,
        core: str,
        page_size: int,
        capacity: int,
        config: AgentCacheConfig | None,
        *,
        clock: Clock | None = None,
        max_length: int = 4096,
        max_requests: int = 32,
        is_eagle: bool = False,
        eviction_policy: str = "lru",
    ) -> None:
        publish_sglang_config()
        self.page_size = page_size
        self.capacity = capacity
        # The token whose KV each slot holds, as a forward pass would have written it.
        self.contents: dict[int, int] = {}
        kv = MHATokenToKVPool(capacity, page_size, torch.float16, 1, 2, 1, "cpu", False)
        self.allocator: Any
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(capacity, torch.float16, "cpu", kv, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(capacity, page_size, torch.float16, "cpu", kv, False)
        self.rows = ReqToTokenPool(max_requests, max_length, "cpu", False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            is_eagle=is_eagle,
            eviction_policy=eviction_policy,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
        self.params = params
        self.cache: Any
        if config is None:
            self.cache = UnifiedRadixCache(params)
        else:
            self.cache = AgentRadixCache(params, config, clock if clock is not None else Clock())

    @property
    def agent(self) -> AgentRadixCache | None:
        return self.cache if isinstance(self.cache, AgentRadixCache) else None

    # ---- requests ----

    def request(
        self,
        rid: str,
        tokens: Iterable[int],
        *,
        trajectory: str | None = None,
        final: bool = False,
        parent: str | None = None,
        output_tokens: int = 1,
        extra_key: str | None = None,
        cache_salt: str | None = None,
    ) -> Req:
        """A request as the scheduler builds it, carrying its hints the way HTTP requests do."""
        hints: dict[str, Any] = {}
        if trajectory is not None:
            hints["trajectory_id"] = trajectory
        if parent is not None:
            hints["parent_id"] = parent
        if final:
            hints["final"] = True
        params = SamplingParams(
            max_new_tokens=output_tokens, ignore_eos=True, custom_params={KEY: hints} if hints else None
        )
        params.normalize(None)
        ids = array("q", tokens)
        return Req(rid, "", ids, params, extra_key=extra_key, cache_salt=cache_salt)

    def arrive(self, req: Req) -> None:
        """`Scheduler._add_request_to_queue`."""
        if self.agent is not None:
            self.agent.request_arrived(req)

    def match(self, req: Req) -> int:
        """`PrefillAdder` looks at a waiting request; nothing is locked yet. Returns the hit length."""
        req.init_next_round_input(self.cache)
        return int(req.prefix_len)

    def needed(self, new_tokens: int) -> int:
        """Slots that SGLang asks the allocator for, for so many new tokens of one request."""
        return new_tokens if self.page_size == 1 else new_tokens + self.page_size

    def room(self) -> int:
        return int(self.allocator.available_size() + self.cache.evictable_size())

    def admit(self, req: Req, chunk: int | None = None) -> bool:
        """Lock the matched prefix and allocate the (first chunk of the) rest.

        Returns:
            False if there is no room; then nothing has changed.
        """
        self.match(req)
        end = len(req.full_untruncated_fill_ids)
        if chunk is not None:
            end = min(end, (req.prefix_len + max(chunk, self.page_size)) // self.page_size * self.page_size)
        lock = self.cache.lock(req.last_node)
        if self.needed(end - req.prefix_len) > self.room() or not self.rows.free_slots:
            self.cache.unlock(lock)
            return False
        req.lock = lock
        req.extend_end = end
        self._extend(req)
        return True

    def prefilled(self, req: Req) -> bool:
        return bool(req.extend_end == len(req.full_untruncated_fill_ids))

    def next_chunk(self, req: Req, chunk: int) -> bool:
        """The forward of a middle chunk is done: publish it and allocate the next. False if no room."""
        checkpoint_kv_cache(req, self.cache)
        req.init_next_round_input()
        rest = len(req.full_untruncated_fill_ids) - req.prefix_len
        size = min(rest, max(chunk, self.page_size) // self.page_size * self.page_size)
        if self.needed(size) > self.room():
            return False
        req.extend_end = req.prefix_len + size
        self._extend(req)
        return True

    def _extend(self, req: Req) -> None:
        start, end = req.prefix_len, req.extend_end
        if req.kv.holds_kv:
            prefix = self.rows.req_to_token[req.kv.req_pool_idx, :start].to(torch.int64)
        elif start:
            prefix = self.cache.prefix_device_indices(req)
        else:
            prefix = torch.empty(0, dtype=torch.int64)
        row = self.rows.alloc([req])
        assert row is not None
        if self.page_size == 1:
            slots = alloc_token_slots(self.cache, end - start)
        else:
            starts, ends = torch.tensor([start]), torch.tensor([end])
            last = prefix[-1:] if start else torch.tensor([-1])
            slots = alloc_paged_token_slots_extend(self.cache, starts, starts, ends, ends, last, end - start)
        self.rows.write((row[0], slice(0, start)), prefix)
        self.rows.write((row[0], slice(start, end)), slots)
        self.contents.update(zip(slots.tolist(), req.full_untruncated_fill_ids[start:end], strict=True))
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end

    def first_token(self, req: Req, token: int) -> None:
        """The last prefill forward is done (`process_batch_result_prefill`)."""
        assert self.prefilled(req)
        req.output_ids.append(token)
        req.update_finish_state()
        if req.finished():
            release_kv_cache(req, self.cache, checkpoint=True)
        else:
            checkpoint_kv_cache(req, self.cache)

    def decode(self, req: Req, token: int) -> bool:
        """One decode step. False, and nothing has changed, if there is no room for it (then retract)."""
        if not self.decode_step(req, token):
            return False
        if req.finished():
            self.release_finished(req)
        return True

    def decode_step(self, req: Req, token: int) -> bool:
        """`decode` up to where a request that has finished is released."""
        if self.needed(1 if self.page_size == 1 else 0) > self.room():
            return False
        length = req.kv.kv_committed_len
        if self.page_size == 1:
            slots = alloc_token_slots(self.cache, 1)
        else:
            lengths = torch.tensor([length + 1])
            last = self.rows.req_to_token[req.kv.req_pool_idx, length - 1 : length].to(torch.int64)
            slots = alloc_paged_token_slots_decode(self.cache, lengths, lengths, last)
        self.rows.write((req.kv.req_pool_idx, slice(length, length + 1)), slots.to(torch.int32))
        self.contents[int(slots[0])] = req.output_ids[-1]
        req.kv.kv_allocated_len += 1
        req.kv.kv_committed_len += 1
        req.output_ids.append(token)
        req.update_finish_state()
        return True

    def release_finished(self, req: Req) -> None:
        """`process_batch_result_decode` of a request that has finished."""
        assert req.finished()
        release_kv_cache(req, self.cache, checkpoint=True)

    # ---- ways out ----

    def abort_queued(self, req: Req) -> None:
        """`Scheduler.abort_request`, method 1: popped from the waiting queue."""
        self.cache.finish(req.cache_request_handle, CacheRequestOutcome.ABORT)
        self._abort_output(req)

    def abort_prefilling(self, req: Req) -> None:
        """`Scheduler.abort_request` of the chunked request: dropped between two chunks."""
        prepare_abort(req, "Aborted")
        self.cache.finish(req.cache_request_handle, CacheRequestOutcome.ABORT)
        release_kv_cache(req, self.cache, checkpoint=False)
        self._abort_output(req)

    def abort_running(self, req: Req) -> None:
        """`Scheduler.abort_request`, method 3: finishes with the batch it is in."""
        req.to_finish = FINISH_ABORT()
        req.update_finish_state()
        release_kv_cache(req, self.cache, checkpoint=True)

    def stub(self, req: Req) -> None:
        """`Req.set_finish_with_abort`: a queued request is cut down to one token and still prefilled."""
        req.grammar = None
        req.origin_input_ids = array("q", [0])
        req.to_finish = FINISH_ABORT("rejected")

    def retract(self, req: Req, free_tokens: int = 0) -> None:
        """`ScheduleBatch.release_req`, then back into the queue."""
        release_kv_cache(req, self.cache, checkpoint=False)
        evict_from_tree_cache(self.cache, free_tokens)
        req.reset_for_retract()
        self.arrive(req)

    def _abort_output(self, req: Req) -> None:
        """`AgentScheduler.send_abort_output`."""
        if self.agent is not None:
            self.agent.request_left(req.rid)

    def serve(self, req: Req, outputs: Sequence[int] = (0,), chunk: int | None = None) -> Req:
        """A whole request, from the queue to its last token."""
        assert req.sampling_params.max_new_tokens == len(outputs)
        self.arrive(req)
        assert self.admit(req, chunk)
        while not self.prefilled(req):
            assert chunk is not None and self.next_chunk(req, chunk)
        self.first_token(req, outputs[0])
        for token in outputs[1:]:
            assert self.decode(req, token)
        assert req.finished()
        return req

    # ---- the pool ----

    def evict(self, tokens: int) -> int:
        """`BasePrefixCache.evict`: drop so many tokens, whatever is free."""
        return int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)

    def free_up(self, tokens: int) -> None:
        """`BaseTokenToKVPoolAllocator.evict_to_free_tokens`: until so many slots are free."""
        evict_from_tree_cache(self.cache, tokens)

    def flush(self) -> None:
        """`Scheduler.flush_cache`; only while nothing runs."""
        self.cache.reset()
        self.rows.clear()
        self.allocator.clear()

    def resident(
        self, tokens: Iterable[int], extra_key: str | None = None, cache_salt: str | None = None
    ) -> int:
        """Tokens of this history that a request would hit; looks without touching (in the tree's units)."""
        key = RadixKey(array("q", tokens), extra_key, cache_salt=cache_salt)
        return int(self.cache.tree_core.match_full_device_prefix(key)[0])

    def check_contents(
        self, tokens: Iterable[int], extra_key: str | None = None, cache_salt: str | None = None
    ) -> None:
        """What is resident of this history is the KV of just these tokens."""
        key = RadixKey(array("q", tokens), extra_key, cache_salt=cache_salt)
        count, node, _ = self.cache.tree_core.match_full_device_prefix(key)
        slots = self.cache.path_device_indices(node).tolist()[:count] if count else []
        assert [self.contents[slot] for slot in slots] == list(key.token_ids[:count])

    def check_pool(self, running: Sequence[Req] = ()) -> None:
        """Every slot is free, in the tree, or held by exactly one running request."""
        free = self.allocator.get_all_free_pages()
        assert len(torch.unique(free)) == len(free), "a page is free twice"
        tree = self.cache.evictable_size() + self.cache.protected_size()
        held = 0
        for req in running:
            pages = -(-req.kv.kv_allocated_len // self.page_size) * self.page_size
            held += pages - req.kv.cache_protected_len
        available = self.allocator.available_size()
        assert available + tree + held == self.capacity, (
            f"{available} available + {tree} in the tree + {held} held by requests != {self.capacity}"
        )
        if not running:
            assert self.cache.protected_size() == 0
            self.cache.sanity_check()
