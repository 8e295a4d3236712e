from pathlib import Path

import pytest

from eval import dataset
from eval.trace import Trajectory, Turn, replace, write_traces
from eval.workload import generate


def test_sampling_takes_sources_in_turn_however_unequal() -> None:
    (item,) = generate("tau2", 1, 0)
    pool = [
        replace(item, trajectory_id=f"{source}{i}", source=source)
        for source, size in (("big", 500), ("mid", 50), ("small", 3))
        for i in range(size)
    ]
    chosen = dataset.sample_by_source(pool, 23, seed=0)
    counts = {name: sum(c.source == name for c in chosen) for name in ("big", "mid", "small")}
    assert counts == {"big": 10, "mid": 10, "small": 3}
    assert chosen == dataset.sample_by_source(pool, 23, seed=0)
    assert chosen != dataset.sample_by_source(pool, 23, seed=1)
    assert len({c.trajectory_id for c in chosen}) == 23
    assert len(dataset.sample_by_source(pool, 9_999, seed=0)) == 553


def test_short_trajectories_can_be_left_out() -> None:
    pool = list(generate("tau2", 50, 0))
    chosen = dataset.sample_by_source(pool, 50, seed=0, min_turns=8)
    assert 0 < len(chosen) < 50
    assert all(len(item.turns) >= 8 for item in chosen)


def test_recorded_traces_win_over_the_generator_and_get_their_unknown_gaps(tmp_path: Path) -> None:
    turns = [
        Turn(kind="user", prompt_tokens=9, new_input_tokens=9, output_tokens=1),
        Turn(kind="tool", prompt_tokens=20, new_input_tokens=10, output_tokens=1, tool_name="bash"),
    ]
    item = Trajectory(trajectory_id="r", session_group="r", source="a/b", agent="mini-swe-agent", turns=turns)
    write_traces(tmp_path / dataset.RECORDED["swe-bench"], [item])
    chosen, origin = dataset.load("swe-bench", 5, 0, tmp_path)
    assert [c.trajectory_id for c in chosen] == ["r"]
    assert chosen[0].turns[1].gap_s is not None
    assert "recorded" in origin
    generated, origin = dataset.load("tau2", 5, 0, tmp_path)
    assert len(generated) == 5
    assert "generator" in origin


def test_unknown_or_missing_workload_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed are coding-agent"):
        dataset.load("chess", 1, 0, None)
    with pytest.raises(ValueError, match="kv-tester exists only as a recording"):
        dataset.load("kv-tester", 1, 0, tmp_path)


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dataset.ENVIRONMENT, str(tmp_path))
    assert dataset.data_folder() == tmp_path
    other = tmp_path / "other"
    with pytest.raises(ValueError, match=r"--data: .*other is not a folder"):
        dataset.data_folder(str(other))
    other.mkdir()
    assert dataset.data_folder(str(other)) == other
    monkeypatch.setenv(dataset.ENVIRONMENT, str(tmp_path / "gone"))
    with pytest.raises(ValueError, match=dataset.ENVIRONMENT):
        dataset.data_folder()
