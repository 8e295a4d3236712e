"""Whom a request without an id is taken for."""

from __future__ import annotations

import pytest
from sglang.srt.managers.schedule_batch import Req

from sglang_agentcache.cache import eviction
from sglang_agentcache.config import AgentCacheConfig
from tests.support.serving import CORES, Server

SYSTEM = list(range(1000, 1064))


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(core: str, page_size: int) -> Server:
    return Server(core, page_size, 4096, AgentCacheConfig("rr", chunk_tokens=64))


def anonymous(server: Server, rid: str, tokens: list[int], outputs: int = 2) -> Req:
    return server.serve(server.request(rid, tokens, output_tokens=outputs), range(7, 7 + outputs))


def trajectories(server: Server) -> int:
    return len(server.cache.table)


@pytest.mark.parametrize("page_size", (1, 16, 64))
def test_the_next_turn_is_the_same_trajectory(core: str, page_size: int) -> None:
    server = build(core, page_size)
    history = SYSTEM + list(range(2000, 2100))
    for turn in range(4):
        anonymous(server, f"r{turn}", history)
        history = [*history, 7, 8, *range(3000 + 100 * turn, 3070 + 100 * turn)]
    assert trajectories(server) == 1


def test_reasoning_left_out_of_the_history_is_still_the_same(
    core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "AHEAD", 1024)
    server = build(core, 1)
    prompt = SYSTEM + list(range(2000, 2100))
    anonymous(server, "r1", prompt, outputs=40)
    anonymous(server, "r2", [*prompt, 46, *range(3000, 3010)])
    assert trajectories(server) == 1
    assert server.cache.table.superseded, "what the model thought is dead and goes first"
    before = server.cache.total_size()[0]
    server.evict(10)
    assert server.cache.stats["superseded_tokens"] == before - server.cache.total_size()[0] == 39


@pytest.mark.parametrize("page_size", (1, 16))
def test_a_shared_system_prompt_is_not_lineage(core: str, page_size: int) -> None:
    server = build(core, page_size)
    anonymous(server, "r1", SYSTEM + list(range(2000, 2100)))
    anonymous(server, "r2", SYSTEM + list(range(4000, 4100)))
    assert trajectories(server) == 2


def test_what_an_aborted_prefill_left_is_not_lineage(core: str) -> None:
    """Only its first chunk is resident: the system prompt, which everybody's request begins with."""
    server = build(core, 1)
    request = server.request("r1", SYSTEM + list(range(2000, 2100)))
    server.arrive(request)
    assert server.admit(request, len(SYSTEM))
    assert server.next_chunk(request, 10)
    server.abort_prefilling(request)
    anonymous(server, "r2", SYSTEM + list(range(4000, 4100)))
    assert trajectories(server) == 2


def test_a_prompt_shorter_than_a_page_is_no_lineage_for_others(core: str) -> None:
    server = build(core, 64)
    request = server.request("r1", range(10), output_tokens=200)
    server.serve(request, [5] * 200)
    anonymous(server, "r2", [*range(10), *[5] * 54, *range(9000, 9100)])
    assert trajectories(server) == 2


def test_two_candidates_are_none(core: str) -> None:
    server = build(core, 1)
    prompt = SYSTEM + list(range(2000, 2100))
    server.serve(server.request("a", prompt, trajectory="a"))
    server.serve(server.request("b", prompt, trajectory="b"))
    anonymous(server, "c", [*prompt, 0, 5])
    assert trajectories(server) == 3


def test_another_namespace_is_never_lineage(core: str) -> None:
    server = build(core, 1)
    prompt = SYSTEM + list(range(2000, 2100))
    anonymous(server, "r1", prompt)
    for number, space in enumerate(({"extra_key": "lora"}, {"cache_salt": "tenant"})):
        server.serve(server.request(f"s{number}", [*prompt, 7, 8, 9], **space))
    assert trajectories(server) == 3


def test_an_active_trajectory_is_not_continued(core: str) -> None:
    server = build(core, 1)
    prompt = SYSTEM + list(range(2000, 2100))
    anonymous(server, "r1", prompt)
    server.arrive(server.request("r2", [*prompt, 7, 8]))
    server.arrive(server.request("r3", [*prompt, 7, 8]))
    assert trajectories(server) == 2


def test_after_its_tail_is_cut_it_is_still_the_same(core: str) -> None:
    server = build(core, 16)
    prompt = SYSTEM + list(range(2000, 2200))
    anonymous(server, "r1", prompt)
    assert server.evict(100) > 0
    anonymous(server, "r2", [*prompt, 7, 8, 9])
    assert trajectories(server) == 1
