"""Our figure beside a claim is the best over the cells under pressure, with the range."""

from pathlib import Path

import pytest

from eval import simulate
from eval.reporting.claims import EXPERIMENTS, Claim, arguments, judge, markdown
from eval.reporting.results import BY_TITLE, Results
from eval.sim import baselines


def results(*rows: tuple[str, str, int, float, float]) -> Results:
    """(policy, schedule, concurrency, mean session seconds, share of lost histories)."""
    found = Results(Path())
    for policy, schedule, concurrency, session, lost in rows:
        found.add(
            {
                "workload": "made up",
                "policy": policy,
                "schedule": schedule,
                "admission": "off",
                "concurrency": concurrency,
                "seed": 0,
                "session_s": {"mean": session},
                "lost_history_share": lost,
            }
        )
    return found


SESSION = BY_TITLE["session s, mean"]


def test_only_cells_under_pressure_count():
    claim = Claim("", "", SESSION, ("rr", "fcfs"), ("lru", "fcfs"), factor=True)
    given = results(
        ("lru", "fcfs", 4, 10.0, 0.0),
        ("rr", "fcfs", 4, 1.0, 0.0),
        ("lru", "fcfs", 8, 20.0, 0.1),
        ("rr", "fcfs", 8, 10.0, 0.1),
        ("lru", "fcfs", 16, 60.0, 0.5),
        ("rr", "fcfs", 16, 40.0, 0.4),
    )
    assert judge(given, claim).figure() == "2.00x at 8 agents (1.50-2.00x)"
    less = Claim("", "", SESSION, ("rr", "fcfs"), ("lru", "fcfs"))
    assert judge(given, less).figure() == "-50.0% at 8 agents (-33.3% to -50.0%)"


def test_policies_may_run_under_different_schedules():
    claim = Claim("", "", SESSION, ("rr", "lpm"), ("lru", "fcfs"), factor=True)
    given = results(("lru", "fcfs", 8, 30.0, 0.1), ("rr", "fcfs", 8, 1.0, 0.1), ("rr", "lpm", 8, 10.0, 0.1))
    assert judge(given, claim).figure().startswith("3.00x")


def test_a_missing_policy_is_said_to_be_missing():
    claim = Claim("", "", SESSION, ("predictive", "fcfs"), ("lru", "fcfs"))
    assert judge(results(("lru", "fcfs", 8, 30.0, 0.1)), claim).figure() == "no run"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda item: item.name)
def test_every_experiment_can_be_planned(experiment):
    import argparse

    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    args = parser.parse_args([*arguments(experiment), "--out", "unused", "--limit-trajectories", "5"])
    sweep = simulate.plan(args)
    labels = {run.baseline.label for run in sweep.runs}
    assert labels <= set(baselines.names())
    wanted = {claim.base[0] for claim in experiment.claims} | {claim.ours[0] for claim in experiment.claims}
    assert wanted <= labels


def test_the_table_names_paper_figure_and_differences():
    text = markdown({EXPERIMENTS[0].name: results(("lru", "fcfs", 8, 30.0, 0.1))})
    assert "-75.4 %" in text and "no run" in text and EXPERIMENTS[0].differences in text
    assert EXPERIMENTS[1].title not in text
