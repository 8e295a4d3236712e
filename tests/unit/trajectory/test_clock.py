"""One clock for all ranks."""

from __future__ import annotations

from sglang_agentcache.trajectory.clock import TICK_INTERVAL_S, Clock, Tick


class Source:
    def __init__(self) -> None:
        self.seconds = 5.0

    def __call__(self) -> float:
        return self.seconds


def test_a_single_rank_reads_its_own_time() -> None:
    source = Source()
    clock = Clock(source=source)
    assert clock.now() == 5.0
    source.seconds = 7.5
    assert clock.now() == 7.5
    assert clock.tick() is None, "nobody to tell"


def test_it_never_goes_back() -> None:
    source = Source()
    clock = Clock(source=source)
    assert clock.now() == 5.0
    source.seconds = 1.0
    assert clock.now() == 5.0
    shared = Clock(shared=True, source=source)
    shared.advance(Tick(9.0))
    shared.advance(Tick(3.0))
    assert shared.now() == 9.0


def test_shared_time_moves_only_with_the_stream() -> None:
    source = Source()
    clock = Clock(shared=True, source=source)
    assert clock.now() == 0.0
    source.seconds = 100.0
    assert clock.now() == 0.0
    clock.advance(Tick(42.0))
    assert clock.now() == 42.0


def test_the_leader_takes_its_own_tick_from_the_stream_too() -> None:
    source = Source()
    leader = Clock(shared=True, source=source)
    assert leader.tick() == Tick(5.0)
    assert leader.now() == 0.0


def test_ranks_that_see_the_same_ticks_agree_whatever_their_own_time() -> None:
    ranks = [Clock(shared=True, source=lambda offset=offset: offset) for offset in (0.0, 1e6, -50.0)]
    for seconds in (1.0, 1.5, 0.5, 4.0):
        for rank in ranks:
            rank.advance(Tick(seconds))
        assert len({rank.now() for rank in ranks}) == 1


def test_at_most_one_tick_in_an_interval() -> None:
    source = Source()
    clock = Clock(shared=True, source=source)
    assert clock.tick() is not None
    source.seconds += TICK_INTERVAL_S * 0.9
    assert clock.tick() is None
    source.seconds += TICK_INTERVAL_S * 0.2
    assert clock.tick() == Tick(source.seconds)


def test_a_source_that_jumps_back_does_not_stop_the_ticks() -> None:
    source = Source()
    clock = Clock(shared=True, source=source)
    assert clock.tick() is not None
    source.seconds = 1.0
    assert clock.tick() == Tick(1.0)
