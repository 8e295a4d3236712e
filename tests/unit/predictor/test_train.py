import argparse
import json

import pytest

import eval.predictor as eval_predictor
from sglang_agentcache import train
from sglang_agentcache.predictor.store import load
from sglang_agentcache.predictor.synthetic import Generator


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A call log of generated sessions, and the artefact and the summary that training makes of it."""
    folder = tmp_path_factory.mktemp("trained")
    records = Generator(seed=3).sessions(2500)
    log = folder / "calls.jsonl"
    with log.open("w") as lines:
        for at, (wait, duration, session) in enumerate(
            zip(records.waits, records.durations, records.sessions, strict=True)
        ):
            call = wait.calls[0] if wait.calls else None
            entry = {
                "t_s": float(at),
                "trajectory": session,
                "name": call.name if call else None,
                "arguments": call.arguments if call else "",
                "duration_s": duration,
                "censored": False,
            }
            lines.write(json.dumps(entry) + "\n")
    return log, folder / "artefact"


def run(capsys, *arguments):
    code = train.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def scored(capsys, *arguments):
    parser = argparse.ArgumentParser()
    eval_predictor.add_arguments(parser)
    code = eval_predictor.main(parser.parse_args([str(argument) for argument in arguments]))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_then_score(trained, capsys):
    log, out = trained
    code, text, progress = run(capsys, "--trace", log, "--out", out, "--json")
    assert code == 0 and "fitting the baselines" in progress
    summary = json.loads(text)
    scores = summary["validation"]
    assert sum(summary["calls_per_tool"].values()) == summary["tool_waits"]
    assert set(scores) == {"stacked", "global_mean", "tool_mean", "tool_median", "session_moving_average"} | {
        f"c{count}_{kind}" for count in (20, 50, 100) for kind in ("mean", "median")
    }
    assert scores["global_mean"]["pairwise_accuracy"] == 0.5
    assert scores["stacked"]["pairwise_accuracy"] > scores["tool_median"]["pairwise_accuracy"] > 0.5
    assert scores["stacked"]["mean_abs_log10_error"] < scores["c100_mean"]["mean_abs_log10_error"]
    assert 0.6 < scores["stacked"]["coverage_80"] < 0.95
    assert load(out).estimator == "stacked"

    code, text, _ = scored(capsys, "--predictor", out, "--trace", log, "--json")
    again = json.loads(text)
    assert code == 0 and set(again) == set(scores)
    for entry in again.values():
        assert entry["n"] == summary["tool_waits"]
        assert 0 <= entry["pairwise_accuracy"] <= 1 and entry["mean_abs_log10_error"] >= 0
    assert again["stacked"]["pairwise_accuracy"] > scores["stacked"]["pairwise_accuracy"]  # it has seen these

    code, text, _ = scored(capsys, "--predictor", out, "--trace", log)
    assert code == 0 and "stacked" in text and "80 % cover" in text


def test_few_calls_are_trained_but_not_validated(tmp_path, capsys):
    log = tmp_path / "few.jsonl"
    log.write_text(
        '{"t_s": 1, "trajectory": "a", "name": "job", "arguments": "", "duration_s": 5, "censored": false}\n'
    )
    code, text, _ = run(
        capsys, "--trace", log, "--out", tmp_path / "out", "--estimator", "cachewise", "--json"
    )
    assert code == 0 and json.loads(text)["validation"] is None
    assert load(tmp_path / "out").predict(("job", "")) == pytest.approx(5.0, rel=0.2)
    code, text, _ = scored(capsys, "--predictor", tmp_path / "out", "--trace", log, "--json")
    assert code == 0 and set(json.loads(text)) == {"cachewise"}


def test_one_clear_sentence_for_wrong_input(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    good = tmp_path / "good.jsonl"
    good.write_text('{"t_s": 1, "trajectory": "a", "name": "job", "arguments": "", "duration_s": 5}\n')
    blocked = tmp_path / "file"
    blocked.write_text("")
    for trace, out, said in (
        (tmp_path / "absent", tmp_path / "o", "cannot read"),
        (empty, tmp_path / "o", "--trace: no wait"),
        (good, blocked / "o", "--out"),
    ):
        code, text, errors = run(capsys, "--trace", trace, "--out", out)
        assert code == 2 and text == "" and said in errors
    code, _, errors = scored(capsys, "--predictor", tmp_path / "absent", "--trace", good)
    assert code == 2 and "no predictor artefact" in errors
