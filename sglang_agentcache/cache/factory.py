"""Building the cache inside the scheduler process, and saying what came of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache
from sglang.srt.runtime_context import get_memory, get_parallel

from sglang_agentcache.config import BACKEND, AgentCacheConfig
from sglang_agentcache.eviction.ranked import RankedPolicy
from sglang_agentcache.predictor.store import from_files, to_files
from sglang_agentcache.serving.state import TRAJECTORY_SOURCES
from sglang_agentcache.trajectory.clock import Clock

from .radix_cache import AgentRadixCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

logger = logging.getLogger(__name__)


def create_agent_cache(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """The factory behind `--radix-cache-backend agentcache` (`register_radix_cache_backend`).

    Raises:
        RuntimeError: this package's scheduler is not in place, so requests would have no trajectories.
        ConfigError: the settings do not fit.
    """
    from sglang.srt.managers import scheduler

    from sglang_agentcache.scheduling.scheduler import AgentScheduler

    if scheduler.Scheduler is not AgentScheduler:
        raise RuntimeError(
            f"--radix-cache-backend {BACKEND}: this package's scheduler is not in force; another plugin replaced "
            "sglang.srt.managers.scheduler.Scheduler, or SGLANG_PLUGINS leaves agentcache out."
        )
    memory, parallel = get_memory(), get_parallel()
    config = AgentCacheConfig.parse(
        memory.radix_eviction_policy, memory.radix_eviction_policy_config, ctx.params.page_size
    )
    if config.orders_trajectories:
        # What no trajectory owns goes in this order; the tree cores know only SGLang's own names.
        ctx.params = replace(ctx.params, eviction_policy="lru", eviction_policy_config=None)
    clock = Clock(shared=parallel.tp_size * parallel.pp_size > 1)

    def cache_class(params: CacheInitParams) -> AgentRadixCache:
        return AgentRadixCache(params, config, clock)

    cache: Any = create_unified_radix_cache(ctx, cache_class=cache_class)
    if clock.shared and isinstance(cache.policy, RankedPolicy):
        _take_over_predictor(cache.policy, parallel.world_group)
    logger.info(
        "agentcache: policy=%s chunk_tokens=%s visit=%s tree_core=%s page_size=%d trajectories from %s",
        config.policy,
        config.chunk_tokens if config.orders_trajectories else "whole leaves",
        config.visit if config.orders_trajectories else "n/a",
        type(cache.tree_core).__name__,
        cache.page_size,
        ", ".join(TRAJECTORY_SOURCES),
    )
    return cache


def _take_over_predictor(policy: RankedPolicy, group: Any) -> None:
    """Put the leader's predictor in force on every rank.

    Fitted by each rank for itself, or read from disks of several machines, they could differ.

    Args:
        group: SGLang's `GroupCoordinator` of all ranks that must agree.
    """
    files = to_files(policy.predictor) if group.rank_in_group == 0 else None
    # The leader too: what was stored is not in every bit what was fitted.
    policy.predictor = from_files(group.broadcast_object(files))


def choose_cache(
    default_factory: Callable[[TreeCacheBuildContext], BasePrefixCache], ctx: TreeCacheBuildContext
) -> BasePrefixCache:
    """AROUND hook of `registry.default_radix_cache_factory`: a policy of ours selects our cache class."""
    config = AgentCacheConfig.parse(get_memory().radix_eviction_policy, None, page_size=1)
    if config.orders_trajectories and not ctx.disable_radix_cache:
        return create_agent_cache(ctx)
    return default_factory(ctx)
