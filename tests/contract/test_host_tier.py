"""With a host tier (HiCache): what is cut goes to the host, and the next chunk is still found above it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from sglang.srt.runtime_context import get_context

from sglang_agentcache.cache import tail
from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from tests.support.serving import CORES, Server

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the host pool would be pinned on the GPU")
HISTORIES = [[1] * 64 + [number + 2] * 192 for number in range(3)]


def settle(server: Server) -> None:
    """Write-through acknowledgements arrive, and their locks are returned."""
    deadline = time.monotonic() + 10
    while server.cache.ongoing_write_through and time.monotonic() < deadline:
        server.cache.check_hicache_events()
        time.sleep(0.005)
    assert not server.cache.ongoing_write_through


@pytest.fixture(
    params=[(core, policy) for core in CORES for policy in ("write_through", "write_back")], ids=str
)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    core, policy = request.param
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    shim = pytest.importorskip("sglang_cpu_shim")
    from sglang.srt.plugins.hook_registry import HookRegistry

    shim.activate()
    HookRegistry.apply_hooks()
    server = Server(core, 16, 1024, AgentCacheConfig("rr", 64))
    settings = get_context().override_server_args(
        device="cpu",
        enable_hierarchical_cache=True,
        hicache_ratio=2.0,
        hicache_size=0,
        hicache_write_policy=policy,
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
    )
    with settings as args:
        server.cache.init_hicache(args, server.params)
        yield server


def serve_all(server: Server) -> None:
    for number, history in enumerate(HISTORIES):
        server.serve(server.request(f"r{number}", history, trajectory=f"t{number}"))


def test_chunk_after_chunk_of_one_trajectory(server: Server) -> None:
    serve_all(server)
    settle(server)
    for taken in range(1, 10):
        assert server.evict(64) == 64
        expected = [256 - 64 * ((taken + 2 - number) // 3) for number in range(3)]
        assert [server.resident(history) for history in HISTORIES] == expected
    assert server.cache.stats["tail_tokens"] == 9 * 64
    server.cache.sanity_check()


def test_the_cache_knows_how_much_the_host_holds(server: Server) -> None:
    assert server.cache.host_tokens == pytest.approx(2 * server.capacity, abs=server.page_size)
    assert Server("rust", 16, 1024, AgentCacheConfig("rr", 64)).cache.host_tokens == 0


def test_what_was_cut_is_a_hit_on_the_host(server: Server) -> None:
    serve_all(server)
    settle(server)
    server.evict(64)
    request = server.request("back", [*HISTORIES[0], 9], trajectory="t0")
    server.arrive(request)
    server.match(request)
    assert (request.prefix_len, request.host_hit_length) == (192, 64)


def test_visited_while_its_backup_locks_it_it_rejoins(server: Server) -> None:
    serve_all(server)
    server.evict(640)
    settle(server)
    server.evict(10_000)
    assert [server.resident(history) for history in HISTORIES] == [0, 0, 0]
    assert server.cache.stats["tail_tokens"] >= 9 * 64
    server.cache.sanity_check()


def test_completion_frees_the_device(server: Server) -> None:
    serve_all(server)
    settle(server)
    free = server.allocator.available_size()
    assert server.cache.complete(TrajectoryKey(Namespace(), "t1")).released_tokens == 192
    assert server.allocator.available_size() == free + 192
    assert server.resident(HISTORIES[0]) == 256


def test_notes_about_host_children_are_swept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "SWEEP_AT_LEAST", 16)
    server.cache.tails._sweep_at = 16
    for number in range(150):
        tokens = [10 + number % 7, number, *range(number, number + 300)]
        server.serve(server.request(f"x{number}", tokens, trajectory=f"x{number}"))
        settle(server)
        server.evict(300)
    assert len(server.cache.tails._demoted) < 64
    server.cache.sanity_check()
