"""The report says what the rows say, in one file."""

import json
import re
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.reporting.findings import answer, compare, sentence
from eval.reporting.results import BY_TITLE, Cell, Results, baseline

P99 = BY_TITLE["uncached tokens, p99"]


def row(policy: str, concurrency: int, seed: int, p99: float) -> dict:
    spread = {"p50": 1.0, "p90": 2.0, "p99": p99, "mean": p99 / 10, "max": p99 * 2}
    return {
        "policy": policy,
        "schedule": "fcfs",
        "admission": "off",
        "workload": "made up",
        "concurrency": concurrency,
        "seed": seed,
        "ttft_s": spread,
        "uncached_tokens": spread,
        "evicted_tokens": 0,
        "released_tokens": 0,
        "session_s": {"mean": 3.0, "p50": 2.0, "p99": 9.0},
        "requests": 10,
        "errors": 0,
        "regime": {
            "active_p50": 0.5,
            "active_max": 0.9,
            "live_p50": 0.2 * concurrency,
            "live_max": 2.0,
            "holds": True,
        },
    }


ROWS = [
    row(policy, concurrency, seed, value + seed)
    for policy, values in (("lru+completion", (100, 1000)), ("rr", (100, 600)), ("<b>", (300, 1000)))
    for concurrency, value in zip((4, 8), values, strict=True)
    for seed in (0, 1)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results.json").write_text(json.dumps([*ROWS, {**row("rr", 8, 2, 1e9), "partial": True}]))
    return tmp_path


def test_rows_are_grouped_and_partial_ones_left_out(folder: Path):
    results = Results.read(folder)
    assert results.partial == 1 and results.policies == ["lru+completion", "rr", "<b>"]
    cell = Cell("made up", "fcfs", "off", 8)
    assert results.values(cell, "rr", P99) == {0: 600.0, 1: 601.0}
    assert results.mean(cell, "rr", P99) == 600.5
    assert baseline(results) == "lru+completion"


def test_sentences_count_wins_and_losses(folder: Path):
    results = Results.read(folder)
    cells = next(results.series())[1]
    ours = sentence("rr", "lru+completion", P99, compare(results, cells, "rr", "lru+completion", P99))
    assert ours == (
        "rr against lru+completion, uncached tokens, p99: "
        "better at 1 of 2 concurrencies (-40.0% at 8 agents); equal at 1."
    )
    worse = sentence("<b>", "lru+completion", P99, compare(results, cells, "<b>", "lru+completion", P99))
    assert "worse at 1 (+199.0% at 4 agents)" in worse
    assert answer(results, cells, P99) == "4 agents: lru+completion, rr (100); 8 agents: rr (600)."


def test_seeds_that_disagree_are_called_out(tmp_path: Path):
    rows = [row("lru", 4, 0, 100), row("lru", 4, 1, 100), row("rr", 4, 0, 50), row("rr", 4, 1, 110)]
    (tmp_path / "summary.json").write_text(json.dumps(rows))
    results = Results.read(tmp_path)
    cells = next(results.series())[1]
    assert "seeds disagree" in sentence("rr", "lru", P99, compare(results, cells, "rr", "lru", P99))


def test_the_page_is_self_contained_and_escaped(folder: Path, capsys):
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "<script" not in page and not re.search(r'(?:src|href)\s*=\s*"(?!#)', page)
    assert "&lt;b&gt;" in page and "<b></td>" not in page
    assert page.count("<svg") == 1, "no requests and no pressure in this folder"
    assert "8 agents (active demand fits, active and idle do not)" in page
    first = page
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == first


def test_a_simulated_folder_has_distributions_and_pressure(tmp_path: Path):
    arguments = ["--policies", "lru,rr", "--concurrency", "4,8", "--capacity-tokens", "20000"]
    common = ["--workload", "tau2", "--limit-trajectories", "12", "--out", str(tmp_path)]
    assert main(["simulate", *common, *arguments]) == 0
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    assert "Memory pressure over time" in page and "Distributions at" in page


def test_markdown_has_the_sentences_and_a_table_for_each_concurrency(folder: Path):
    output = folder / "report.md"
    assert main(["report", str(folder), "--markdown", str(output)]) == 0
    text = output.read_text()
    assert "better at 1 of 2 concurrencies (-40.0% at 8 agents)" in text
    assert "#### 4 agents\n" in text and "#### 8 agents (active demand fits" in text
    row = next(line for line in text.splitlines() if line.startswith("| rr |"))
    header = next(line for line in text.splitlines() if line.startswith("| policy |"))
    assert row.count("|") == header.count("|")


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "results.json"), ("[]", "no complete"), ("{", "rows"), ('[{"policy": 1}]', "rows")],
)
def test_bad_folders_are_named(tmp_path: Path, capsys, content: str | None, named: str):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    assert named in capsys.readouterr().err
