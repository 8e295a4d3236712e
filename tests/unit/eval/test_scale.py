import pytest

from eval.scale import (
    Scale,
    apply,
    expected_demand,
    limit_waiting,
    longest_waiting_first,
    split_sessions,
    stretch_gaps,
)
from eval.trace import Trajectory, Turn, check
from eval.workload import generate


def make(*turns: Turn, name: str = "t", shared: int = 0) -> Trajectory:
    first = Turn(kind="user", prompt_tokens=100, new_input_tokens=100, output_tokens=10)
    return Trajectory(
        trajectory_id=name,
        session_group=name,
        source="s",
        turns=[first, *turns],
        shared_prefix_id="p" if shared else None,
        shared_prefix_tokens=shared,
    )


def later(prompt: int, new: int, gap: float, kind: str = "tool", **more: bool) -> Turn:
    return Turn(kind=kind, prompt_tokens=prompt, new_input_tokens=new, output_tokens=10, gap_s=gap, **more)


def test_scaled_traces_stay_valid_and_keep_their_proportions() -> None:
    items = list(generate("coding-agent", 40, seed=0))
    scaled = list(apply(items, Scale(tokens=1 / 32, gaps=0.5)))
    assert len(scaled) == len(items)
    for before, after in zip(items, scaled, strict=True):
        check(after)
        assert len(after.turns) == len(before.turns)
        wanted = before.turns[-1].prompt_tokens / 32
        assert after.turns[-1].prompt_tokens == pytest.approx(wanted, rel=0.05, abs=4)
        assert after.shared_prefix_tokens == pytest.approx(before.shared_prefix_tokens / 32, abs=1)
        assert all(turn.output_tokens >= 1 and turn.new_input_tokens >= 1 for turn in after.turns)


def test_gaps_are_capped_by_who_is_waited_for() -> None:
    item = make(
        later(120, 10, 50.0),
        later(140, 10, 50.0, kind="user"),
        later(160, 10, 50.0, human=True),
        later(180, 10, 2.0),
    )
    (scaled,) = apply([item], Scale(gaps=0.5, gap_cap_s=10, human_cap_s=30))
    assert [turn.gap_s for turn in scaled.turns[1:]] == [5.0, 15.0, 15.0, 1.0]
    (stretched,) = stretch_gaps([scaled], 2.0)
    assert [turn.gap_s for turn in stretched.turns] == [None, 10.0, 30.0, 30.0, 2.0]


def test_limits_cut_the_tail_and_drop_what_does_not_fit_at_all() -> None:
    item = make(later(120, 10, 1.0), later(140, 10, 1.0), later(160, 10, 1.0))
    assert len(next(apply([item], Scale(max_turns=2))).turns) == 2
    (cut,) = apply([item], Scale(max_context=150))
    assert [turn.prompt_tokens for turn in cut.turns] == [100, 120, 140]
    assert cut.truncated
    assert cut.n_turns == 3
    assert list(apply([item], Scale(max_context=50))) == []


def test_human_pause_ends_the_session() -> None:
    item = make(
        later(120, 10, 900.0),
        later(140, 10, 900.0, kind="user"),
        later(160, 10, 5.0, kind="user"),
        shared=30,
    )
    first, second = split_sessions(item, 600)
    assert [len(part.turns) for part in (first, second)] == [2, 2]
    assert len({first.trajectory_id, second.trajectory_id, item.trajectory_id}) == 3
    assert second.turns[0].kept_tokens == 0
    assert second.turns[0].gap_s is None
    for part in (first, second):
        check(part)
    assert split_sessions(item, 1e6) == [item]


def test_waiting_is_limited_in_total() -> None:
    item = make(later(120, 10, 3.0), later(140, 10, 3.0), later(160, 10, 3.0))
    (cut,) = limit_waiting([item], 7.0)
    assert [turn.gap_s for turn in cut.turns] == [None, 3.0, 3.0]
    assert cut.truncated
    assert limit_waiting([item], 9.0) == [item]


def test_long_waiters_go_first_and_the_rest_keeps_its_order() -> None:
    items = [make(later(120, 10, gap), name=str(gap)) for gap in (1.0, 9.0, 2.0, 8.0, 3.0)]
    names = [item.trajectory_id for item in longest_waiting_first(items, 2)]
    assert names == ["9.0", "8.0", "1.0", "2.0", "3.0"]


@pytest.mark.parametrize("field", ["tokens", "gaps", "gap_cap_s", "boundary_s", "max_turns", "max_context"])
def test_bad_scale_names_its_field(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Scale(**{field: 0})


def test_demand_counts_a_shared_prefix_once() -> None:
    items = [make(later(120, 10, 1.0), name=str(i), shared=60) for i in range(4)]
    demand = expected_demand(items, concurrency=10)
    # Private contexts after the two turns: 110 - 60 and 130 - 60.
    assert demand.live_tokens == pytest.approx(10 * 60 + 60)
    assert demand.peak == 130
    assert demand.mean_context == 120
    assert demand.pool_for(1.5) == 440
    with pytest.raises(ValueError, match="no trajectory"):
        expected_demand([], 1)
