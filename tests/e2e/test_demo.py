import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.records import read_records
from eval.server import free_port

pytestmark = pytest.mark.e2e


def test_demo_replays_against_real_servers(tmp_path: Path) -> None:
    """A pool that holds everything: every returning request finds its whole history, under every policy."""
    arguments = [
        *("demo", "--generated", "--workload", "coding-agent", "--out", str(tmp_path)),
        *("--policies", "lru", "rr", "--trajectories", "6", "--concurrency", "3", "--pool-tokens", "20000"),
        *("--max-turns", "4", "--max-context", "3000", "--gap-scale", "0.01", "--seed", "3"),
    ]
    assert main(arguments) == 0

    rows = json.loads((tmp_path / "summary.json").read_text())
    assert [row["policy"] for row in rows] == ["lru", "rr"]
    assert [row["errors"] for row in rows] == [0, 0]
    assert [row["evicted_tokens"] for row in rows] == [0, 0]
    assert rows[0]["released_tokens"] == 0 < rows[1]["released_tokens"]

    runs = [list(read_records(tmp_path / name / "requests.jsonl")) for name in ("lru", "rr")]
    for requests in runs:
        assert len(requests) == rows[0]["requests"]
        assert {record.trajectory_id for record in requests} == {f"coding-agent-3-{i}" for i in range(6)}
        for record in requests:
            assert record.ttft_s is not None
            assert record.latency_s is not None
            assert 0 < record.ttft_s <= record.latency_s
            if record.turn:
                # The last output token's KV is not computed before it is needed.
                assert record.cached_tokens >= record.history_tokens - 1
    sizes = [sorted((r.trajectory_id, r.turn, r.prompt_tokens, r.output_tokens) for r in run) for run in runs]
    assert sizes[0] == sizes[1]
    assert (tmp_path / "tails.png").read_bytes().startswith(b"\x89PNG")


def test_server_that_refuses_its_flags_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "demo",
        "--generated",
        "--out",
        str(tmp_path),
        "--policies",
        "lru",
        "--model-path",
        str(tmp_path),
    ]
    assert main(arguments) == 1
    assert "the server exited with" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interruption_keeps_results_and_stops_the_server(
    tmp_path: Path, repository: Path, number: signal.Signals
) -> None:
    port = free_port()
    # Python leaves an inherited "ignore SIGINT" alone, which a shell sets for background jobs.
    start = f"import signal; signal.signal({signal.SIGINT:d}, signal.default_int_handler); "
    command = [
        *(sys.executable, "-c", start + "from eval.__main__ import main; raise SystemExit(main())"),
        *("demo", "--generated", "--out", str(tmp_path), "--policies", "lru", "rr", "--port", str(port)),
        *("--trajectories", "20", "--concurrency", "4", "--gap-scale", "0.1", "--pool-tokens", "9000"),
    ]
    requests = tmp_path / "lru" / "requests.jsonl"
    with subprocess.Popen(command, cwd=repository) as process:
        try:
            deadline = time.monotonic() + 240
            while not requests.exists() or requests.read_bytes().count(b"\n") < 10:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            process.send_signal(number)
            assert process.wait(60) == 130
        finally:
            process.terminate()
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert row["partial"] is True
    assert row["requests"] >= 10
    assert row["requests"] == len(list(read_records(requests)))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
