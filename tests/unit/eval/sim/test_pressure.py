"""Demand counts what is live, and each shared prefix once."""

from eval.sim.pressure import POINTS, Demand
from eval.trace import Trajectory, Turn


def trajectory(name: str, prefix: str | None = "system") -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        session_group=name,
        source="test",
        turns=[Turn(kind="user", prompt_tokens=150, new_input_tokens=150, output_tokens=10)],
        shared_prefix_id=prefix,
        shared_prefix_tokens=100 if prefix else 0,
    )


def test_active_and_live_tokens():
    demand, one, two, alone = Demand(), trajectory("a"), trajectory("b"), trajectory("c", None)
    demand.sent(one, 160)
    demand.sent(two, 180)
    demand.sent(alone, 50)
    assert demand.active_tokens == demand.live_tokens == 100 + 60 + 80 + 50
    demand.answered(one, last=False)
    assert (demand.active_tokens, demand.live_tokens) == (100 + 80 + 50, 290)
    demand.sent(one, 300)
    assert demand.active_tokens == demand.live_tokens == 100 + 200 + 80 + 50
    for item in (one, two, alone):
        demand.answered(item, last=True)
    assert demand.active_tokens == demand.live_tokens == 0


def test_the_series_is_thinned():
    demand = Demand()
    demand.sent(trajectory("a"), 160)
    for moment in range(5 * POINTS):
        demand.sample(float(moment), 120, 20)
    series = demand.series(1_000)
    assert len(series["t_s"]) == POINTS
    assert set(series["active_tokens"]) == {160} and set(series["idle_tokens"]) == {0}
    assert set(series["used_tokens"]) == {120} and set(series["evictable_tokens"]) == {20}
