"""What this package works with, and the sentence a user gets where it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from . import flags
from .config import BACKEND, POLICY_FLAG, AgentCacheConfig, ConfigError
from .disagg.settings import PREFILL_URL, URL_FLAG, channel_settings, secret
from .scheduling.order import POLICY_NAMES

SUPPORTED_SGLANG = ("0.5.23",)


class ModelTraits(Protocol):
    """Read of SGLang's `ModelConfig`."""

    is_hybrid_swa: bool


def version_problem(version: str) -> str | None:
    """Why this SGLang version cannot be used, or None."""
    if version in SUPPORTED_SGLANG:
        return None
    return f"sglang {version} is not supported by this package; supported: {', '.join(SUPPORTED_SGLANG)}."


def is_wanted(args: Any) -> bool:
    """Whether these server arguments ask for our cache."""
    config = AgentCacheConfig.parse(args.radix_eviction_policy, None, page_size=1)
    return config.orders_trajectories or args.radix_cache_backend == BACKEND


def _problems(args: Any) -> Iterator[str]:
    if args.disable_radix_cache and args.disaggregation_mode == "decode":
        yield (
            "a decode worker keeps no radix cache; leave the policy to the prefill worker, or add "
            "--disaggregation-decode-enable-radix-cache"
        )
    if args.disable_radix_cache:
        yield "--disable-radix-cache leaves nothing to evict; drop one of the two"
    if args.radix_cache_backend not in (None, BACKEND):
        yield f"--radix-cache-backend {args.radix_cache_backend} has its own eviction; drop it or use {BACKEND}"
    if args.enable_session_radix_cache:
        yield (
            "--enable-session-radix-cache (session references) is not supported: send session_id without it, "
            "POST /close_session releases the session's KV"
        )
    if args.enable_streaming_session:
        yield "--enable-streaming-session is not supported: a streaming session keeps its KV outside the tree"
    if args.enable_lmcache:
        yield "--enable-lmcache is not supported: it replaces the cache class"
    if args.enable_flexkv:
        yield "--enable-flexkv is not supported: it replaces the cache class"
    if args.enable_unified_cache_external_linker:
        yield "--enable-unified-cache-external-linker is not supported: it requires SGLang's own cache class"
    if args.hicache_host_memory_mode == "buffer_only":
        yield "--hicache-host-memory-mode buffer_only is not supported: it pins nodes past the cache's locks"
    if args.dcp_size > 1:
        yield "--dcp-size above 1 is not supported: chunks are not aligned to its wider pages yet"
    if args.enable_dp_attention and args.pp_size > 1 and not args.enable_dp_attention_local_control_broadcast:
        yield (
            "--enable-dp-attention with --pp-size above 1 needs --enable-dp-attention-local-control-broadcast: "
            "without it the later stages of a group get the time of another group's leader"
        )
    if os.environ.get("SGLANG_RUST_SERVER", "").lower() in ("1", "true"):
        yield "SGLANG_RUST_SERVER is not supported: the Rust front end does not read what requests carry for us"
    if args.tokenizer_worker_num > 1:
        yield "--tokenizer-worker-num above 1 is not supported: SGLang loads no plugins in its tokenizer workers"


def check_schedule(args: Any) -> None:
    """Check resolved server arguments of a server that wants a schedule policy of ours, with whatever cache.

    Raises:
        ConfigError: one sentence that names the flag and what is allowed.
    """
    if args.schedule_policy not in POLICY_NAMES:
        return
    who = f"--schedule-policy {args.schedule_policy}"
    flags.patience(os.environ)
    if args.disable_radix_cache:
        raise ConfigError(f"{who} needs the prefix cache; drop --disable-radix-cache, or use fcfs.")
    if args.dllm_algorithm is not None:
        raise ConfigError(
            f"{who}: --dllm-algorithm is not supported: its queue does not count prefill; use fcfs."
        )


def check_admission(args: Any) -> None:
    """Check resolved server arguments of any server against `--agentcache-admission`.

    Raises:
        ConfigError: one sentence that names the flag and what is allowed.
    """
    if flags.admission(os.environ) != "off" and args.disaggregation_mode == "null" and not is_wanted(args):
        raise ConfigError(
            f"{flags.PREFIX}admission ({flags.ADMISSION}) needs this package's cache, which knows trajectories: add "
            f"{POLICY_FLAG} rr (or predictive, convex), or --radix-cache-backend {BACKEND}."
        )


def check_channel(args: Any) -> None:
    """Check resolved server arguments of any server against `--agentcache-prefill-url` and its secret.

    Raises:
        ConfigError: one sentence that names the flag and what is allowed.
    """
    secret(os.environ)
    if channel_settings(os.environ) is not None and args.disaggregation_mode != "decode":
        raise ConfigError(f"{URL_FLAG} ({PREFILL_URL}) is for decode workers: --disaggregation-mode decode.")


def check(args: Any, model: ModelTraits | None, uses_ssm: bool) -> AgentCacheConfig:
    """Check resolved server arguments of a server that wants our cache.

    Args:
        args: a view of SGLang's `ServerArgs` with its defaults resolved.
        model: the model's traits, or None if they cannot be read yet.
        uses_ssm: whether the model keeps recurrent state (Mamba, linear attention).

    Raises:
        ConfigError: one sentence that names the flag and what is allowed.
    """
    flags.check(os.environ)
    who = f"{POLICY_FLAG} {args.radix_eviction_policy}"
    if args.radix_cache_backend == BACKEND:
        who = f"--radix-cache-backend {BACKEND} with {who}"
    for problem in _problems(args):
        raise ConfigError(f"{who}: {problem}.")
    if model is not None and model.is_hybrid_swa:
        raise ConfigError(
            f"{who}: models with sliding-window layers are not supported: cutting a tail can invalidate "
            "the whole window."
        )
    if uses_ssm:
        raise ConfigError(
            f"{who}: models with recurrent state (Mamba, linear attention) are not supported: their state "
            "exists only at checkpoints, and cutting past the last one loses all reuse."
        )
    return AgentCacheConfig.parse(
        args.radix_eviction_policy, args.radix_eviction_policy_config, args.page_size
    )
