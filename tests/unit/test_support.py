"""What a server with our cache may be started with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_agentcache.config import ConfigError
from sglang_agentcache.disagg.settings import PREFILL_URL, SECRET
from sglang_agentcache.flags import ADMISSION
from sglang_agentcache.support import check, check_admission, check_channel, is_wanted, version_problem

DEFAULTS: dict[str, Any] = {
    "radix_eviction_policy": "rr",
    "radix_eviction_policy_config": None,
    "radix_cache_backend": None,
    "page_size": 16,
    "disable_radix_cache": False,
    "disaggregation_mode": "null",
    "enable_session_radix_cache": False,
    "enable_streaming_session": False,
    "enable_lmcache": False,
    "enable_flexkv": False,
    "enable_unified_cache_external_linker": False,
    "hicache_host_memory_mode": "cache",
    "dcp_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "enable_dp_attention_local_control_broadcast": False,
    "tokenizer_worker_num": 1,
}


def arguments(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**DEFAULTS | changes)


def test_defaults_pass() -> None:
    assert check(arguments(), SimpleNamespace(is_hybrid_swa=False), uses_ssm=False).policy == "rr"


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        (
            {"disable_radix_cache": True, "disaggregation_mode": "decode"},
            "--disaggregation-decode-enable-radix-cache",
        ),
        ({"radix_cache_backend": "flexkv"}, "--radix-cache-backend flexkv"),
        ({"enable_session_radix_cache": True}, "--enable-session-radix-cache"),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
        ({"enable_lmcache": True}, "--enable-lmcache"),
        ({"enable_flexkv": True}, "--enable-flexkv"),
        ({"enable_unified_cache_external_linker": True}, "--enable-unified-cache-external-linker"),
        ({"hicache_host_memory_mode": "buffer_only"}, "--hicache-host-memory-mode buffer_only"),
        ({"dcp_size": 2}, "--dcp-size"),
        (
            {"enable_dp_attention": True, "pp_size": 2},
            "--enable-dp-attention-local-control-broadcast",
        ),
        ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num"),
        ({"radix_eviction_policy_config": {"chunk_tokens": 8}}, "chunk_tokens"),
    ],
)
def test_each_refusal_names_its_flag(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(arguments(**changes), SimpleNamespace(is_hybrid_swa=False), uses_ssm=False)
    sentence = str(refused.value)
    assert flag in sentence and sentence.endswith(".") and "\n" not in sentence


def test_the_door_needs_a_cache_that_knows_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = arguments(radix_eviction_policy="lru")
    check_admission(stock)
    monkeypatch.setenv(ADMISSION, "auto")
    with pytest.raises(ConfigError, match=r"--agentcache-admission .* needs this package's cache"):
        check_admission(stock)
    check_admission(arguments())
    check_admission(arguments(radix_eviction_policy="lru", radix_cache_backend="agentcache"))


def test_only_decode_workers_tell_prefill_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    check_channel(arguments(disaggregation_mode="prefill"))
    monkeypatch.setenv(PREFILL_URL, "http://prefill:30000")
    monkeypatch.setenv(SECRET, "0123456789abcdef")
    check_channel(arguments(disaggregation_mode="decode"))
    for mode in ("null", "prefill"):
        with pytest.raises(ConfigError, match=r"--agentcache-prefill-url .* is for decode workers"):
            check_channel(arguments(disaggregation_mode=mode))


def test_models_that_cannot_be_cut() -> None:
    with pytest.raises(ConfigError, match="sliding-window"):
        check(arguments(), SimpleNamespace(is_hybrid_swa=True), uses_ssm=False)
    with pytest.raises(ConfigError, match="recurrent"):
        check(arguments(), SimpleNamespace(is_hybrid_swa=False), uses_ssm=True)


def test_the_rust_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(ConfigError, match="SGLANG_RUST_SERVER"):
        check(arguments(), SimpleNamespace(is_hybrid_swa=False), uses_ssm=False)


def test_who_wants_the_cache() -> None:
    assert is_wanted(arguments())
    assert is_wanted(arguments(radix_eviction_policy="lru", radix_cache_backend="agentcache"))
    assert not is_wanted(arguments(radix_eviction_policy="lru"))


def test_versions() -> None:
    assert version_problem("0.5.23") is None
    problem = version_problem("0.6.0")
    assert problem is not None and "0.6.0" in problem and "0.5.23" in problem
