"""A prefill worker hears, from the decode worker, how a request that began here has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.mem_cache.common import release_kv_cache

from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.disagg.messages import Ended
from sglang_agentcache.disagg.rooms import Rooms
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.trajectory.clock import Clock
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.model import Trajectory
from tests.support.serving import CORES, Server

PROMPT = list(range(1000, 1400))
SLOW, QUICK = (ToolCall("sleep", "{}"),), (ToolCall("ls", "{}"),)


class Prefill:
    """A prefill worker: a request is active until its transfer has ended, after one token."""

    def __init__(self, core: str, policy: str) -> None:
        self.now = 100.0
        config = AgentCacheConfig.parse(policy, {"chunk_tokens": 128}, page_size=1)
        self.server = Server(core, 1, 4096, config, clock=Clock(source=lambda: self.now))
        assert self.server.agent is not None
        self.cache = self.server.agent
        self.rooms = Rooms(self.cache)

    def arrive(self, room: int, tokens: list[int], name: str, **options: object) -> Req:
        req = self.server.request(f"r{room}", tokens, trajectory=name, output_tokens=50, **options)
        req.bootstrap_room = room
        self.server.arrive(req)
        self.rooms.arrived(req)
        return req

    def prefill(self, req: Req) -> None:
        assert self.server.admit(req)
        self.server.first_token(req, 7)

    def transferred(self, req: Req) -> None:
        """`process_disagg_prefill_inflight_queue`, poll == Success."""
        req.finished_reason = FINISH_LENGTH(length=0)
        release_kv_cache(req, self.server.cache, checkpoint=True)
        self.cache.request_left(req.rid)
        self.rooms.ended(req)

    def serve(self, room: int, tokens: list[int], name: str, **options: object) -> Trajectory:
        req = self.arrive(room, tokens, name, **options)
        self.prefill(req)
        self.transferred(req)
        return self.trajectory(name)

    def trajectory(self, name: str) -> Trajectory:
        found = self.cache.table.get(TrajectoryKey(Namespace(), name))
        assert found is not None
        return found


@pytest.fixture(params=CORES)
def prefill(request: pytest.FixtureRequest) -> Prefill:
    return Prefill(request.param, "predictive")


def test_active_until_the_transfer_has_ended(prefill: Prefill) -> None:
    req = prefill.arrive(1, PROMPT, "a")
    assert prefill.trajectory("a").requests
    prefill.prefill(req)
    assert prefill.trajectory("a").requests
    prefill.transferred(req)
    assert not prefill.trajectory("a").requests
    assert prefill.server.resident(PROMPT) == len(PROMPT)
    prefill.server.check_pool()


def test_the_output_is_missing_from_the_start(prefill: Prefill) -> None:
    trajectory = prefill.serve(1, PROMPT, "a")
    assert prefill.rooms.told(Ended(1, output_tokens=50, tool_calls=QUICK)) == "applied"
    assert trajectory.resident_tokens == len(PROMPT)
    assert trajectory.missing_tokens == 50
    assert trajectory.hints.tool_calls == QUICK


def test_the_wait_begins_when_decoding_ended(prefill: Prefill) -> None:
    trajectory = prefill.serve(1, PROMPT, "a")
    prefill.now += 8.0
    prefill.rooms.told(Ended(1, 50, tool_calls=QUICK, age_s=3.0))
    assert trajectory.idle_since == 105.0
    # A clock that runs wrong cannot put it before the transfer.
    trajectory = prefill.serve(2, [*PROMPT, 1], "b")
    prefill.rooms.told(Ended(2, 50, tool_calls=QUICK, age_s=3_000.0))
    assert trajectory.idle_since == 108.0


def test_the_order_follows(prefill: Prefill) -> None:
    for room, name in enumerate(("a", "b")):
        prefill.serve(room, [room * 500 + i for i in range(400)], name)
    told = {0: QUICK, 1: SLOW}
    for seconds in range(60):
        prefill.cache.policy.predictor.observe(prefill.cache.policy.predictor.prepare(SLOW), 900.0 + seconds)
        prefill.cache.policy.predictor.observe(prefill.cache.policy.predictor.prepare(QUICK), 0.1)
    for room, calls in told.items():
        prefill.rooms.told(Ended(room, 5, tool_calls=calls))
    prefill.server.evict(128)
    assert [prefill.trajectory(name).resident_tokens for name in ("a", "b")] == [400, 272]
    # Of two others, the calls are the other way round.
    for room, name in enumerate(("c", "d"), start=2):
        prefill.cache.complete(prefill.trajectory("ab"[room - 2]).key)
        prefill.serve(room, [room * 500 + i for i in range(400)], name)
    prefill.rooms.told(Ended(2, 5, tool_calls=SLOW))
    prefill.rooms.told(Ended(3, 5, tool_calls=QUICK))
    prefill.server.evict(128)
    assert [prefill.trajectory(name).resident_tokens for name in ("c", "d")] == [272, 400]


def test_a_word_that_is_faster_than_the_transfer_waits_for_it(prefill: Prefill) -> None:
    req = prefill.arrive(1, PROMPT, "a")
    prefill.prefill(req)
    assert prefill.rooms.told(Ended(1, 1, tool_calls=QUICK)) == "early"
    assert prefill.trajectory("a").hints.tool_calls is None
    prefill.transferred(req)
    assert prefill.trajectory("a").hints.tool_calls == QUICK
    assert prefill.cache.stats["hints.decode.applied"] == 1
    assert prefill.rooms.state() == {"rooms": 0}


def test_a_word_that_the_next_request_overtook_is_late(prefill: Prefill) -> None:
    prefill.serve(1, PROMPT, "a")
    prefill.now += 1.0
    second = prefill.arrive(2, [*PROMPT, 5, 6], "a")
    assert prefill.rooms.told(Ended(1, 50, tool_calls=SLOW)) == "late"
    prefill.prefill(second)
    prefill.transferred(second)
    trajectory = prefill.trajectory("a")
    assert trajectory.hints.tool_calls is None and trajectory.missing_tokens == 1
    prefill.now += 1.0
    third = prefill.serve(3, [*PROMPT, 5, 6, 7], "a")
    assert prefill.rooms.told(Ended(2, 50, tool_calls=SLOW)) == "late"
    assert third.hints.tool_calls is None


def test_what_the_client_said_counts_more(prefill: Prefill) -> None:
    trajectory = prefill.serve(1, PROMPT, "a")
    trajectory.hints = replace(trajectory.hints, tool_calls=())
    prefill.rooms.told(Ended(1, 50, tool_calls=SLOW))
    assert trajectory.hints.tool_calls == ()


def test_an_aborted_request_says_nothing_of_the_wait(prefill: Prefill) -> None:
    trajectory = prefill.serve(1, PROMPT, "a")
    assert prefill.rooms.told(Ended(1, 3, aborted=True)) == "applied"
    assert trajectory.hints.tool_calls is None and trajectory.missing_tokens == 3


def test_final_releases(prefill: Prefill) -> None:
    prefill.serve(1, PROMPT, "a")
    prefill.rooms.told(Ended(1, 3, final=True))
    assert len(prefill.cache.table) == 0
    assert prefill.server.resident(PROMPT) == 0
    prefill.server.check_pool()


def test_of_a_completed_trajectory_nobody_wants_to_hear(prefill: Prefill) -> None:
    prefill.serve(1, PROMPT, "a")
    prefill.cache.complete(TrajectoryKey(Namespace(), "a"))
    assert prefill.rooms.told(Ended(1, 3, tool_calls=SLOW)) == "late"
    assert prefill.rooms.told(Ended(1, 3, tool_calls=SLOW)) == "unknown"


def test_another_namespace_is_refused_and_costs_the_right_one_nothing(prefill: Prefill) -> None:
    req = prefill.arrive(1, PROMPT, "a", cache_salt="mine")
    prefill.prefill(req)
    prefill.transferred(req)
    assert prefill.rooms.told(Ended(1, 9, tool_calls=SLOW, cache_salt="yours")) == "refused"
    assert prefill.rooms.told(Ended(1, 9, tool_calls=SLOW)) == "refused"
    assert prefill.rooms.told(Ended(1, 9, tool_calls=QUICK, cache_salt="mine")) == "applied"


def test_a_failed_transfer_forgets_the_room(prefill: Prefill) -> None:
    req = prefill.arrive(1, PROMPT, "a")
    prefill.prefill(req)
    req.finished_reason = FINISH_ABORT("the transfer failed")
    release_kv_cache(req, prefill.server.cache, checkpoint=True)
    prefill.rooms.ended(req)
    assert prefill.rooms.told(Ended(1, 9, tool_calls=SLOW)) == "unknown"
    assert not prefill.trajectory("a").requests
    prefill.server.check_pool()


def test_the_oldest_room_goes_first_when_nobody_tells() -> None:
    prefill = Prefill("rust", "rr")
    prefill.rooms = Rooms(prefill.cache, max_rooms=3)
    for room in range(5):
        prefill.serve(room, [room * 500 + i for i in range(100)], f"t{room}")
    assert prefill.rooms.state() == {"rooms": 3}
    assert prefill.rooms.told(Ended(1, 9)) == "unknown"
    assert prefill.rooms.told(Ended(2, 9)) == "applied"


def test_round_robin_is_not_moved_by_it() -> None:
    prefill = Prefill("rust", "rr")
    for room in range(3):
        prefill.serve(room, [room * 500 + i for i in range(400)], f"t{room}")
    prefill.rooms.told(Ended(0, 9, tool_calls=SLOW))
    prefill.server.evict(128)
    assert [prefill.trajectory(f"t{room}").resident_tokens for room in range(3)] == [272, 400, 400]
