"""What all formats have in common: errors, damage, memory, privacy, determinism."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.importers import FORMATS, importer
from eval.trace import read_traces
from tests.unit.eval.importers import logs

SAMPLES: dict[str, Callable[[Path], Path]] = {
    "claude-code": lambda path: logs.write_lines(path / "s.jsonl", logs.claude_session()),
    "codex": lambda path: logs.write_lines(path / "rollout-1.jsonl", logs.codex_rollout()),
    "tau2": lambda path: logs.write_json(path / "r.json", logs.tau2_results()),
    "mini-swe-agent": lambda path: logs.write_json(path / "i.traj.json", logs.mini_v1()),
    "swe-agent": lambda path: logs.write_json(path / "i.traj", logs.swe_agent_trajectory()),
    "openhands": lambda path: logs.write_json(path / "t.json", logs.openhands_v0()),
    "mooncake": lambda path: logs.write_lines(path / "m.jsonl", logs.mooncake_lines()),
    "aiperf": lambda path: logs.write_lines(path / "a.jsonl", [{"input_length": 9, "session_id": "secret"}]),
}
LINES = ["claude-code", "codex", "mooncake", "aiperf"]
DOCUMENTS = ["tau2", "mini-swe-agent", "swe-agent", "openhands"]


def run(form: str, path: Path, out: Path, *flags: str) -> int:
    return main(["import", "--format", form, str(path), "-o", str(out), *flags])


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) | {"trace"} == set(FORMATS)


@pytest.mark.parametrize("form", SAMPLES)
def test_same_logs_same_bytes_plain_or_gzipped(tmp_path, form: str) -> None:
    path = SAMPLES[form](tmp_path / "logs")
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    outs = [tmp_path / name for name in ("one.jsonl", "two.jsonl", "three.jsonl")]
    for source, out in zip((path, path, packed), outs, strict=True):
        assert run(form, source, out) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes() == outs[2].read_bytes() != b""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "logs",
        "one.jsonl",
        "three.jsonl",
        "two.jsonl",
    ]


@pytest.mark.parametrize(
    # AIPerf reads Mooncake's lines.
    ("form", "other"),
    [pair for pair in permutations(SAMPLES, 2) if pair != ("aiperf", "mooncake")],
)
def test_another_formats_file_is_refused_by_name(tmp_path, capsys, form: str, other: str) -> None:
    path, out = SAMPLES[other](tmp_path), tmp_path / "out.jsonl"
    assert run(form, path, out) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert str(path) in errors[0] and importer(form).EXPECTED in errors[0]
    assert not out.exists()


@pytest.mark.parametrize("form", LINES)
def test_damaged_lines_are_counted_and_named(tmp_path, capsys, form: str) -> None:
    path, whole, out = SAMPLES[form](tmp_path), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert run(form, path, whole) == 0
    path.write_text('{"type": "us\n' + path.read_text() + "[1]\n" + 8 * "oops\n")
    assert run(form, path, out) == 0
    assert out.read_bytes() == whole.read_bytes()
    report = capsys.readouterr().err
    assert "10 damaged records" in report and f"{path}:1: " in report and "and 5 more" in report


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_document_that_breaks_off_gives_what_came_before(tmp_path, capsys, form: str) -> None:
    path, out = SAMPLES[form](tmp_path), tmp_path / "out.jsonl"
    text = path.read_text()
    path.write_text(text[: int(len(text) * 0.9)])
    assert run(form, path, out) == 0
    assert list(read_traces(out))
    assert (
        f"1 damaged records and 0 files of another format were skipped:\n  {path}:" in capsys.readouterr().err
    )


def test_a_folder_may_hold_other_files(tmp_path, capsys) -> None:
    SAMPLES["tau2"](tmp_path / "runs")
    logs.write_json(tmp_path / "runs" / "settings.json", {"a": 1})
    assert run("tau2", tmp_path / "runs", tmp_path / "out.jsonl") == 0
    assert "1 files of another format" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "flags", "problem"),
    [
        ("nowhere", (), "nowhere: no such file or directory"),
        (".", (), "no *.traj below this directory"),
        ("i.traj.gz", ("--block-size", "0"), "--block-size: at least 1, got 0"),
    ],
)
def test_bad_usage_is_one_clear_error(
    tmp_path, capsys, path: str, flags: tuple[str, ...], problem: str
) -> None:
    assert run("swe-agent", tmp_path / path, tmp_path / "out.jsonl", *flags) == 2
    assert problem in capsys.readouterr().err


def test_the_output_is_not_one_of_the_inputs(tmp_path, capsys) -> None:
    path = SAMPLES["mooncake"](tmp_path)
    before = path.read_bytes()
    assert run("mooncake", path, path) == 2
    assert "--output" in capsys.readouterr().err and path.read_bytes() == before


def test_a_log_without_requests_is_an_error(tmp_path, capsys) -> None:
    path = logs.write_lines(tmp_path / "s.jsonl", [logs.claude_line("user", 0, "Hello?")])
    assert run("claude-code", path, tmp_path / "out.jsonl") == 2
    assert "no request of a model" in capsys.readouterr().err


def test_texts_and_ids_stay_out(tmp_path) -> None:
    long = "private words " * 40
    lines = logs.claude_session()
    lines[5] = logs.claude_reply(4, "m1", logs.claude_call("t2", "Write", content=long), (10, 900, 90, 1))
    lines[6] = logs.claude_result(9.5, "t2", long)
    path = logs.write_lines(tmp_path / "s-1.jsonl", lines)
    out = tmp_path / "out.jsonl"
    assert run("claude-code", path, out) == 0
    text = out.read_text()
    assert "<str:560>" in text
    assert [word for word in ("s-1", "the parser", "private words", "Thanks") if word in text] == []


def test_arguments_are_bounded_and_can_be_dropped(tmp_path) -> None:
    lines = logs.claude_session()
    many = {f"option_{number}": number for number in range(100)}
    lines[5] = logs.claude_reply(
        4, "m1", logs.claude_call("t2", "Bash", command="c" * 900, **many), (1, 1, 1, 1)
    )
    path, out = logs.write_lines(tmp_path / "s.jsonl", lines), tmp_path / "out.jsonl"
    assert run("claude-code", path, out) == 0
    arguments = next(read_traces(out)).turns[1].tool_args
    assert arguments is not None and len(arguments) == 300 and arguments.startswith('{"command": "ccc')
    assert run("claude-code", path, out, "--no-arguments") == 0
    assert [turn.tool_args for turn in next(read_traces(out)).turns] == [None, None, None]


def test_a_heredoc_is_a_files_content(tmp_path) -> None:
    lines = logs.claude_session()
    command = "cat <<'EOF' > a.py\nsecret = 1\nEOF"
    lines[5] = logs.claude_reply(4, "m1", logs.claude_call("t2", "Bash", command=command), (1, 1, 1, 1))
    out = tmp_path / "out.jsonl"
    assert run("claude-code", logs.write_lines(tmp_path / "s.jsonl", lines), out) == 0
    assert next(read_traces(out)).turns[1].tool_args == """{"command": "cat <<'EOF' > a.py ..."}"""


def test_start_is_relative_and_the_prefix_is_the_median(tmp_path) -> None:
    for number, cached in enumerate((700, 800, 8000)):
        lines = [
            logs.claude_line("user", 100 * number, "Go", sessionId=f"s-{number}"),
            logs.claude_reply(
                100 * number + 5, f"m{number}", {}, (10, cached, 2, 3), sessionId=f"s-{number}"
            ),
        ]
        logs.write_lines(tmp_path / "p" / f"{number}.jsonl", lines)
    out = tmp_path / "out.jsonl"
    assert run("claude-code", tmp_path / "p", out) == 0
    items = list(read_traces(out))
    assert [item.start_s for item in items] == [0.0, 100.0, 200.0]
    assert [item.shared_prefix_tokens for item in items] == [712, 800, 800]
    assert len({item.shared_prefix_id for item in items}) == 1


def test_ctrl_c_leaves_what_was_read(tmp_path, monkeypatch, capsys) -> None:
    module = importer("mini-swe-agent")
    for number in range(3):
        logs.write_json(tmp_path / "runs" / f"{number}.traj.json", logs.mini_v1())
    original = module.trajectories

    def interrupted(context):
        for number, draft in enumerate(original(context)):
            if number == 2:
                raise KeyboardInterrupt
            yield draft

    monkeypatch.setattr(module, "trajectories", interrupted)
    out = tmp_path / "out.jsonl"
    assert run("mini-swe-agent", tmp_path / "runs", out) == 130
    assert len(list(read_traces(out))) == 2


MEBIBYTE = 2**20


def big_session(path: Path) -> Path:
    with path.open("w") as out:
        for number in range(700):
            block = logs.claude_call(f"t{number}", "Read", file_path="a.py")
            usage = (10, 100 * number, 90, 5)
            out.write(json.dumps(logs.claude_reply(10 * number, f"m{number}", block, usage)) + "\n")
            out.write(json.dumps(logs.claude_result(10 * number + 1, f"t{number}", "x" * 45_000)) + "\n")
    return path


def big_results(path: Path) -> Path:
    document = logs.tau2_results()
    simulation = document["simulations"][0]
    simulation["messages"][3]["content"] = "x" * 300_000
    text = json.dumps(simulation)
    with path.open("w") as out:
        out.write(json.dumps({"info": document["info"]})[:-1] + ', "simulations": [')
        out.write(", ".join([text] * 100) + "]}")
    return path


def big_requests(path: Path) -> Path:
    with path.open("w") as out:
        for number in range(80_000):
            blocks = [number // 5, *range(10**9 + 40 * number, 10**9 + 40 * number + 30)]
            line = {"timestamp": number, "input_length": 512 * 31, "output_length": 9, "hash_ids": blocks}
            out.write(json.dumps(line) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "write"), [("claude-code", big_session), ("tau2", big_results), ("mooncake", big_requests)]
)
def test_memory_does_not_grow_with_the_file(tmp_path, form: str, write: Callable[[Path], Path]) -> None:
    """Peak of Python memory: an eighth of a file of some 30 MB (a file of requests is nothing but counts: half)."""
    path = write(tmp_path / ("big.json" if form == "tau2" else "big.jsonl"))
    size = path.stat().st_size
    assert size > 28 * MEBIBYTE
    run(form, SAMPLES[form](tmp_path / "warm"), tmp_path / "warm.jsonl")
    tracemalloc.start()
    try:
        assert run(form, path, tmp_path / "out.jsonl") == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / (2 if form == "mooncake" else 8)
