import numpy as np
import pytest

from eval import workload
from eval.tool_model import SHELL, Quantiles, classify
from eval.trace import Trajectory, Turn, check, replace, replace_turn

# P10, P50, P90 of public runs that the profiles are meant to have: turns, first prompt, final prompt, new
# tokens and output tokens per turn.
FIGURES = {
    "coding-agent": [
        *((6, 14, 117), (6e3, 21.9e3, 42.6e3), (31e3, 68e3, 144e3), (47, 276, 3200), (47, 167, 849))
    ],
    "swe-bench": [(22, 36, 66), (1.4e3, 1.6e3, 2.4e3), (13e3, 22e3, 38e3), (17, 91, 757), (27, 89, 681)],
    "tau2": [(5, 9, 18), (1.6e3, 1.6e3, 2e3), (2.1e3, 4e3, 6.9e3), (12, 86, 364), (24, 55, 257)],
}


@pytest.mark.parametrize("name", list(workload.PROFILES))
def test_profile_fits_the_published_figures(name: str) -> None:
    items = list(workload.generate(name, 400, seed=1))
    later = [turn for item in items for turn in item.turns[1:]]
    samples = [
        [len(item.turns) for item in items],
        [item.turns[0].prompt_tokens for item in items],
        [item.turns[-1].prompt_tokens for item in items],
        [turn.new_input_tokens for turn in later],
        [turn.output_tokens for item in items for turn in item.turns],
    ]
    for values, wanted in zip(samples, FIGURES[name], strict=True):
        found = np.percentile(values, (10, 50, 90))
        # First and final prompts are sums of draws: their low end is the loosest.
        assert np.all(found[1:] / wanted[1:] < 1.45), (found, wanted)
        assert np.all(found[1:] / wanted[1:] > 0.65), (found, wanted)
        assert 0.5 < found[0] / wanted[0] < 2.2, (found, wanted)


def test_gaps_have_heavy_tails_and_depend_on_the_tool() -> None:
    gaps: dict[str, list[float]] = {}
    for item in workload.generate("coding-agent", 300, seed=2):
        for turn in item.turns[1:]:
            gaps.setdefault(turn.tool_name or "user", []).append(turn.gap_s or 0.0)
    assert np.median(gaps["view_file"]) < 0.1 < np.median(gaps["run_shell"]) < 10 < np.median(gaps["user"])
    assert np.percentile(gaps["run_shell"], 99) > 50 * np.median(gaps["run_shell"])


@pytest.mark.parametrize("name", list(workload.PROFILES))
def test_same_seed_same_trajectories_and_each_is_valid(name: str) -> None:
    items = list(workload.generate(name, 20, seed=5))
    assert items == list(workload.generate(name, 20, seed=5))
    assert items[:7] == list(workload.generate(name, 7, seed=5))
    assert items != list(workload.generate(name, 20, seed=6))
    for item in items:
        check(item)
    assert len({item.shared_prefix_id for item in items}) < len(items)


def test_long_sessions_are_compacted() -> None:
    items = list(workload.generate("coding-agent", 300, seed=0))
    resets = [(item, turn) for item in items for turn in item.turns if turn.reset]
    assert resets
    assert all(turn.kept_tokens == item.shared_prefix_tokens for item, turn in resets)
    window = workload.PROFILES["coding-agent"].window
    assert all(turn.prompt_tokens <= window for item in items for turn in item.turns)


def test_unknown_profile_is_named() -> None:
    with pytest.raises(ValueError, match="allowed are coding-agent, swe-bench, tau2; got 'chess'"):
        list(workload.generate("chess", 1, 0))


def test_quantiles_go_through_their_points() -> None:
    spread = Quantiles(2, 5, 30, 100, cap=150)
    scores = np.random.default_rng(0).standard_normal(40_000)
    found = np.percentile([spread.at(score) for score in scores], (10, 50, 90, 99))
    assert found == pytest.approx([2, 5, 30, 100], rel=0.08)
    assert spread.at(9.0) == 150


def test_fill_gaps_replaces_only_what_is_unknown() -> None:
    turns = [Turn(kind="user", prompt_tokens=9, new_input_tokens=9, output_tokens=1)]
    for index, known in enumerate([None, 4.0, None, None]):
        kind = "user" if index == 3 else "tool"
        turns.append(
            Turn(
                kind=kind,
                prompt_tokens=20,
                new_input_tokens=11,
                output_tokens=1,
                gap_s=known,
                tool_name="bash",
            )
        )
    item = Trajectory(trajectory_id="t", session_group="t", source="s", agent="mini-swe-agent", turns=turns)
    filled = workload.fill_gaps(item, seed=0)
    assert filled.turns[0].gap_s is None
    assert filled.turns[2].gap_s == 4.0
    assert all(turn.gap_s is not None and turn.gap_s >= 0 for turn in filled.turns[1:])
    assert filled == workload.fill_gaps(item, seed=0)
    assert filled != workload.fill_gaps(item, seed=1)
    known = replace(item, turns=[item.turns[0], replace_turn(item.turns[1], gap_s=0.0)])
    assert workload.fill_gaps(known, seed=0) is known


@pytest.mark.parametrize("name", [name for name in SHELL if SHELL[name].words])
def test_invented_commands_are_recognised(name: str) -> None:
    forms = SHELL[name].forms
    assert sum(classify(form.format(m="ledger", n=3)) == name for form in forms) >= len(forms) / 2
