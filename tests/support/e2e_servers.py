"""The servers that the end-to-end tests run against, and the watch kept over each of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eval.server import Server
from tests.support.e2e_client import Client

OUR_LAUNCHER = "sglang_agentcache.launch_server"
START_S = 420.0  # a loaded machine; 25 s on an idle one
COMPLAINT = re.compile(
    r"Traceback \(most recent|memory leak|Mem Leak|use-after-free|double free|panicked at"
    r"|Scheduler hit an exception|AssertionError|Found rank divergence",
    re.IGNORECASE,
)


def complaint_in(log: str) -> re.Match[str] | None:
    """The first thing in a server's log that should not be there."""
    # SGLang's HTTP process asks its scheduler to freeze objects after the warm-up, and reports a time-out on a slow
    # machine with a traceback.
    return COMPLAINT.search(re.sub(r"post-warmup freeze_gc failed\n(?:(?!\[\d{4}-).*\n)*", "", log))


#: All of SGLang's own memory checks: after every batch, every page, and (its default) when idle.
CHECKS = (
    ("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "1"),
    ("SGLANG_CHECK_KV_PAGE_INVARIANTS", "1"),
)


@dataclass(frozen=True)
class Config:
    """One way of starting a server; its pool holds `pool_tokens`."""

    name: str
    arguments: tuple[str, ...]
    pool_tokens: int = 16_384
    page_size: int = 1
    ranks: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    serve: bool = False
    """Start with `sglang serve`, without our launcher."""
    ours: bool = True
    """Whether our cache is expected to be in force."""
    metrics: bool = True


_RR = ("--radix-eviction-policy", "rr")
_LRU = ("--radix-cache-backend", "agentcache", "--radix-eviction-policy", "lru")
_PAGE_16 = ("--page-size", "16")
_HOST_TIER = (*_RR, "--enable-hierarchical-cache", "--hicache-ratio", "3", "--hicache-write-policy")

RR = Config("rr", _RR)
RR_PAGE_16 = Config("rr-page16", (*_RR, *_PAGE_16), page_size=16)
LRU = Config("lru", _LRU)
LRU_PAGE_16 = Config("lru-page16", (*_LRU, *_PAGE_16), page_size=16)
SMALL = Config(
    "rr-small-pool",
    (*_RR, "--radix-eviction-policy-config", '{"chunk_tokens": 128}', "--schedule-conservativeness", "0.1"),
    pool_tokens=2_048,
)
PLUGIN = Config(
    "sglang-serve-python-core",
    (*_RR, "--radix-eviction-policy-config", '{"visit": "leaf", "chunk_tokens": 512}'),
    environment=(("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python"), ("SGLANG_USE_CPU_ENGINE", "1")),
    api_key="a-key",
    serve=True,
)
STOCK = Config("stock", (), ours=False)
WRITE_THROUGH = Config("hicache-write-through", (*_HOST_TIER, "write_through"))
WRITE_BACK = Config("hicache-write-back", (*_HOST_TIER, "write_back"))
TENSOR_PARALLEL = Config(
    "rr-tp2", (*_RR, "--tp", "2"), ranks=2, environment=(("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", "1"),)
)
#: One request at a time, so that the order in which they end is that in which they were served.
PREFIX_AWARE = Config(
    "prefix-aware",
    (
        *(*_RR, "--schedule-policy", "prefix-aware", "--agentcache-patience", "0.3"),
        *("--max-running-requests", "1", "--enable-priority-scheduling"),
    ),
)


def two_ranks(policy: str, parallel: str = "tp") -> Config:
    """Two ranks, and evictions of so few tokens that thousands of them take seconds."""
    return Config(
        f"{policy}-{parallel}2-small-chunks",
        (
            *("--radix-eviction-policy", policy, "--radix-eviction-policy-config", '{"chunk_tokens": 16}'),
            *(f"--{parallel}-size", "2", "--tool-call-parser", "qwen"),
            *("--schedule-policy", "prefix-aware", "--agentcache-admission", "auto"),
        ),
        pool_tokens=4_096,
        ranks=2,
        environment=(("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", "1"),),
    )


_SLOW = {WRITE_BACK, TENSOR_PARALLEL}


def on(*configs: Config) -> pytest.MarkDecorator:
    """Run a test (or all of a module's) on these servers; tests with the same one share it."""
    params = [
        pytest.param(config, id=config.name, marks=pytest.mark.slow if config in _SLOW else ())
        for config in configs
    ]
    return pytest.mark.parametrize("server", params, indirect=True)


class Running:
    """A running server, with its log read from where the last check ended."""

    def __init__(self, config: Config, server: Server, log: Path) -> None:
        self.config = config
        self.log = log
        self.client = Client(server.url, config.api_key)
        self.start_log = self.log_text()
        self._checked = 0

    @property
    def chunk(self) -> int:
        return int(self.client.state()["chunk_tokens"])

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def assert_clean(self) -> None:
        """Nothing is active or locked, every token of the pool is free or evictable, the log is quiet."""
        state: dict[str, Any] = self.client.settled() if self.config.ours else {}
        text = self.log_text()
        new, self._checked = text[self._checked :], len(text)
        complaint = complaint_in(new)
        assert complaint is None, complaint.string[max(0, complaint.start() - 200) : complaint.start() + 3000]
        if not self.config.ours:
            return
        assert state["trajectories"]["active"] == 0
        assert state["counters"].get("requests_lost_track_of", 0) == 0
        pool = state["pool"]
        assert pool["locked_tokens"] == 0
        assert pool["free_tokens"] + pool["evictable_tokens"] == self.config.pool_tokens

    def whole_pages(self, tokens: int) -> int:
        """What the tree keeps of a history of this length."""
        return tokens // self.config.page_size * self.config.page_size


@contextmanager
def running(config: Config, model: Path, log: Path) -> Iterator[Running]:
    """Start a server, wait until it is healthy, and stop it and all its processes on the way out."""
    arguments: Sequence[str] = (
        *("--device", "cpu", "--model-path", str(model), "--dtype", "float32"),
        *("--max-total-tokens", str(config.pool_tokens), "--enable-cache-report"),
        *(("--enable-metrics",) if config.metrics else ()),
        *(("--api-key", config.api_key) if config.api_key else ()),
        *config.arguments,
    )
    environment = {**dict(CHECKS), **dict(config.environment)}
    server = Server(OUR_LAUNCHER, arguments, log, environment=environment)
    if config.serve:
        script = Path(sys.executable).with_name("sglang")
        server.command = [
            *(os.fspath(script), "serve", "--host", "127.0.0.1", "--port", str(server.port)),
            *(*arguments, "--sleep-on-idle"),
        ]
    with server:
        server.wait_healthy(START_S)
        yield Running(config, server, log)
