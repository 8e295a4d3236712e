import argparse
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.calibrate import Speed
from eval.demo import add_arguments
from eval.plan import PRESETS, Plan, make_plan
from eval.policies import POLICIES


def plan(*flags: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_plan(parser.parse_args(["--generated", *flags]))


@pytest.mark.parametrize("workload", list(PRESETS))
def test_presets_aim_at_the_regime_and_fit_the_machine(workload: str) -> None:
    made = plan("--workload", workload)
    assert made.demand.live_tokens / made.pool_tokens == pytest.approx(1.35, rel=0.01)
    assert made.demand.peak < made.pool_tokens / 2
    fast, slow = (made.fit_gaps(Speed(1000, cold, cold / 8, 0.003)) for cold in (0.05, 0.08))
    assert fast.scale.gaps < slow.scale.gaps
    assert slow.fitted is not None
    for fitted in (fast, slow):
        assert all(sum(turn.gap_s or 0 for turn in item.turns) <= 40 for item in fitted.trajectories)


def test_chunk_shrinks_with_the_contexts_and_stays_on_a_page() -> None:
    assert plan().chunk_tokens == 16
    assert plan("--token-scale", "0.1", "--page-size", "16").chunk_tokens == 96
    assert plan("--page-size", "64").chunk_tokens == 64
    command = POLICIES["rr-leaf"].command(32)
    assert command[-1] == '{"chunk_tokens": 32, "visit": "leaf"}'
    assert POLICIES["lru"].command(32) == []


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--pool-tokens", "500"], "pool of 500 tokens: the longest context"),
        (["--concurrency", "0"], "--concurrency: above 0"),
        (["--token-scale", "-1"], "tokens scale: above 0"),
        (["--data", "nowhere"], "--data: nowhere is not a folder"),
    ],
)
def test_bad_flags_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], problem: str
) -> None:
    generated = [] if "--data" in flags else ["--generated"]
    assert main(["demo", "--out", str(tmp_path), *generated, *flags]) == 2
    assert problem in capsys.readouterr().err
