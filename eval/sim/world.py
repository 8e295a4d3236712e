"""One simulated server's memory: SGLang's configuration, pools, allocator and radix cache, all real."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from eval.sim.baselines import FACT_POLICIES, Baseline, Facts


def prepare_process() -> None:
    """What SGLang needs before it is imported where there is no GPU; harmless if done already."""
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


prepare_process()

import torch  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402

from sglang_agentcache.cache.radix_cache import AgentRadixCache  # noqa: E402
from sglang_agentcache.config import AgentCacheConfig  # noqa: E402
from sglang_agentcache.eviction import EvictionPolicy  # noqa: E402
from sglang_agentcache.trajectory.clock import Clock  # noqa: E402

PAGE_SIZE = 1


class _Counted:
    """Counts what the server's eviction metric counts (`BasePrefixCache.update_eviction_metrics`)."""

    evicted_tokens = 0

    def update_eviction_metrics(self, num_evicted: int, start_time: float) -> None:
        self.evicted_tokens += num_evicted


class StockCache(_Counted, UnifiedRadixCache):
    """SGLang's own cache."""


class AgentCache(_Counted, AgentRadixCache):
    """This package's cache."""


@dataclass(frozen=True)
class FactConfig(AgentCacheConfig):
    """The server's settings, with a policy that only an evaluation can have."""

    facts: Facts | None = None

    @property
    def orders_trajectories(self) -> bool:
        return True

    def make_policy(self) -> EvictionPolicy:
        assert self.facts is not None
        return FACT_POLICIES[self.policy](self.facts)


def config_for(baseline: Baseline, facts: Facts) -> AgentCacheConfig:
    """The server's configuration of a baseline. Raises `config.ConfigError` for an unknown option."""
    if baseline.policy not in FACT_POLICIES:
        return AgentCacheConfig.parse(baseline.policy, baseline.options, PAGE_SIZE)
    # Chunk options are parsed as the server parses them for its own policies.
    parsed = AgentCacheConfig.parse("rr", baseline.options, PAGE_SIZE)
    return FactConfig(
        policy=baseline.policy, chunk_tokens=parsed.chunk_tokens, visit=parsed.visit, facts=facts
    )


class World:
    """Use as a context manager: SGLang's configuration is process-wide, so one world at a time.

    Args:
        baseline: which cache.
        facts: for policies that are told the truth.
        capacity_tokens: size of the KV pool.
        rows: requests that can hold KV at once.
        max_context: longest prompt plus output.
        now: virtual time, seconds.
        server_args: further `ServerArgs` fields to publish, such as ``schedule_policy``.
    """

    def __init__(
        self,
        baseline: Baseline,
        facts: Facts,
        *,
        capacity_tokens: int,
        rows: int,
        max_context: int,
        now: Callable[[], float],
        server_args: Mapping[str, Any],
    ) -> None:
        self.baseline = baseline
        self.capacity_tokens = capacity_tokens
        self._facts, self._now = facts, now
        self._rows, self._max_context = rows, max_context
        self._published = get_context().override_server_args(
            device="cpu", radix_eviction_policy=baseline.policy, page_size=PAGE_SIZE, **server_args
        )

    def __enter__(self) -> World:
        self._published.install()
        # The KV itself is never touched, so there is none: the allocator hands out indices.
        self.allocator = TokenToKVPoolAllocator(self.capacity_tokens, torch.bfloat16, "cpu", None, False)
        self.requests = ReqToTokenPool(self._rows, self._max_context + PAGE_SIZE, "cpu", False)
        self.cache = self._cache()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._published.restore()

    def _cache(self) -> StockCache | AgentCache:
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.requests,
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE_SIZE,
            tree_components=(ComponentType.FULL,),
            enable_session_radix_cache=self.baseline.session_references,
        )
        if self.baseline.stock:
            return StockCache(
                replace(
                    params,
                    eviction_policy=self.baseline.policy,
                    eviction_policy_config=dict(self.baseline.options) or None,
                )
            )
        # As cache.factory: what no trajectory owns goes in SGLang's default order.
        config = config_for(self.baseline, self._facts)
        return AgentCache(params, config, Clock(source=self._now))

    @property
    def agent_cache(self) -> AgentCache | None:
        """The cache, if it is ours."""
        return self.cache if isinstance(self.cache, AgentCache) else None
