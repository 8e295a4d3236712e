"""The `agentcache` section of `GET /server_info`: what is in force and the live counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_agentcache import __version__

if TYPE_CHECKING:
    from sglang_agentcache.cache.radix_cache import AgentRadixCache

TRAJECTORY_SOURCES = (
    "hint",
    "session_id",
    "dynamo",
    "claude-code",
    "codex",
    "opencode",
    "header",
    "anthropic-user",
    "prompt-cache-key",
    "previous-response",
    "lineage",
)
"""Where a trajectory's identity may come from, first match first (`serving.carriers.find`)."""


def settings(cache: AgentRadixCache) -> dict[str, Any]:
    """What was decided at start."""
    config = cache.agent_config
    return {
        "version": __version__,
        "policy": config.policy,
        "chunk_tokens": config.chunk_tokens if config.orders_trajectories else None,
        "visit": config.visit if config.orders_trajectories else None,
        "policy_options": dict(config.policy_options),
        "tree_core": type(cache.tree_core).__name__,
        "page_size": cache.page_size,
        "trajectory_sources": list(TRAJECTORY_SOURCES),
    }


def pool(cache: AgentRadixCache) -> dict[str, int]:
    """Where the tokens of the device pool are now; what is missing from the sum is held by running requests."""
    return {
        "free_tokens": cache.token_to_kv_pool_allocator.available_size(),
        "evictable_tokens": cache.full_evictable_size(),
        "locked_tokens": cache.full_protected_size(),
    }


def server_state(cache: AgentRadixCache) -> dict[str, Any]:
    """Settings and counters; tokens are counted since the server started."""
    return {
        **settings(cache),
        "trajectories": dict(cache.table.states()),
        "pool": pool(cache),
        "released_tokens": cache.stats["released_tokens"],
        "counters": dict(cache.stats),
    }
