"""How likely an idle trajectory comes back."""

import pytest

from sglang_agentcache.scheduling.returns import AWAY_S, Returns


def seen(came: list[float], stayed: int) -> Returns:
    returns = Returns()
    for idle_s in came:
        returns.came(idle_s)
    for _ in range(stayed):
        returns.stayed()
    returns.fade()
    return returns


def test_all_come_back_before_anything_is_seen():
    assert [Returns().likely(idle_s) for idle_s in (0.0, 30.0, AWAY_S - 0.1)] == [1.0] * 3


def test_none_comes_back_in_time_that_has_been_away():
    assert Returns().likely(AWAY_S) == 0.0


def test_the_longer_idle_the_less_likely():
    returns = seen([0.5] * 80 + [10.5] * 15 + [40.5] * 5, stayed=20)
    assert returns.likely(0.2) == pytest.approx(100 / 120, abs=0.01)
    assert returns.likely(5.0) == pytest.approx(20 / 40, abs=0.03)
    assert returns.likely(20.0) == pytest.approx(5 / 25, abs=0.04)
    chances = [returns.likely(second) for second in range(AWAY_S)]
    assert chances == sorted(chances, reverse=True)


def test_old_times_fade():
    returns = seen([], stayed=100)
    before = returns.likely(0.0)
    for _ in range(200):
        for _ in range(10):
            returns.came(1.0)
        returns.fade()
    assert before < 0.02
    assert returns.likely(0.0) > 0.95
    assert returns.likely(30.0) > 0.3, "who stayed away is forgotten, too"
