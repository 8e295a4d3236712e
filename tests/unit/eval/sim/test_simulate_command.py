"""python -m eval simulate: files, errors, interruption."""

import json
import signal
import subprocess
import sys
import time

import pytest

from eval import trace, workload
from eval.__main__ import main
from eval.sim.scheduler import SimulationError, Worker


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("traces") / "tau.jsonl.gz"
    trace.write_traces(path, workload.generate("tau2", 30, 0))
    return str(path)


def simulate(traces: str, out, *more: str) -> int:
    return main(["simulate", "--trace", traces, "--out", str(out), "--capacity-tokens", "20000", *more])


def test_rows_requests_and_pressure(traces, tmp_path, capsys):
    arguments = ("--policies", "lru,rr:chunk_tokens=256", "--concurrency", "4,12", "--seed", "0,1", "--check")
    assert simulate(traces, tmp_path, *arguments, "--jobs", "2") == 0
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 2 * 2 * 2
    assert {row["policy"] for row in rows} == {"lru", "rr:chunk_tokens=256"}
    for row in rows:
        assert set(row["ttft_s"]) == set(row["uncached_tokens"]) == {"p50", "p90", "p99", "mean", "max"}
        assert row["goodput_tok_s"] > 0 and row["makespan_s"] > 0 and row["errors"] == 0
        assert row["workload"] == "tau"
    assert len(list((tmp_path / "requests").iterdir())) == len(list((tmp_path / "pressure").iterdir())) == 8
    pressure = json.loads((tmp_path / "pressure" / "lru.fcfs.c12.s0.json").read_text())
    assert pressure["capacity_tokens"] == 20000
    assert max(pressure["used_tokens"]) <= 20000
    assert len(pressure["t_s"]) == len(pressure["active_tokens"]) == len(pressure["idle_tokens"]) > 10
    assert "/ lru" in capsys.readouterr().out


def test_the_same_arguments_give_the_same_files(traces, tmp_path):
    for name, jobs in (("a", "1"), ("b", "2")):
        assert (
            simulate(traces, tmp_path / name, "--policies", "rr,oracle", "--concurrency", "8", "--jobs", jobs)
            == 0
        )
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 6
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


def test_a_run_that_fails_leaves_the_others(traces, tmp_path, capsys, monkeypatch):
    def alloc(worker, tokens):
        if worker.settings.schedule == "lpm":
            raise SimulationError("3 slots wanted")
        return whole(worker, tokens)

    whole = Worker._alloc
    monkeypatch.setattr(Worker, "_alloc", alloc)
    arguments = ("--policies", "lru,rr", "--schedule", "lpm,fcfs", "--concurrency", "4")
    assert simulate(traces, tmp_path, *arguments) == 1
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [(row["schedule"], row.get("failed")) for row in rows] == [
        *[("lpm", "3 slots wanted")] * 2,
        *[("fcfs", None)] * 2,
    ]
    assert all(row.get("partial", False) is ("failed" in row) for row in rows)
    assert "error: rr, lpm, admission off, 4 agents, seed 0: 3 slots wanted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--policies", "best"), "--policies"),
        (("--policies", "rr:chunks=1"), "chunks"),
        (("--schedule", "random-walk"), "--schedule"),
        (("--concurrency", "0"), "--concurrency"),
        (("--concurrency", "many"), "--concurrency"),
        (("--seed", "-1"), "--seed"),
        (("--capacity-tokens", "0"), "--capacity-tokens"),
        (("--model", "gpt-9"), "--model"),
        (("--jobs", "0"), "--jobs"),
        (("--token-scale", "0"), "tokens"),
    ],
)
def test_bad_arguments_are_named(traces, tmp_path, capsys, arguments, named):
    assert simulate(traces, tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and named in error and error.count("\n") == 1


def test_a_trace_or_a_workload_is_needed(tmp_path, capsys):
    assert main(["simulate", "--out", str(tmp_path)]) == 2
    assert "--trace" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_leaves_what_is_done(tmp_path, jobs, repository):
    path = tmp_path / "swe.jsonl"
    trace.write_traces(path, workload.generate("swe-bench", 150, 0))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "eval",
        "simulate",
        "--trace",
        str(path),
        "--out",
        str(out),
        "--jobs",
        jobs,
    ]
    process = subprocess.Popen(
        [*command, "--policies", "lru,rr,oracle,slru", "--capacity-tokens", "300000", "--concurrency", "24"],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        progress = ""
        # The bar counts requests once runs are under way.
        while "req/s" not in progress or " 0.00/" in progress[-60:]:
            progress += process.stderr.read(64)
            assert time.monotonic() < deadline
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, output
    rows = json.loads((out / "results.json").read_text())
    assert rows and any(row.get("partial") for row in rows)
    assert "partial" in output
