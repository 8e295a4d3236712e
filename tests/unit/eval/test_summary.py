import json

import pytest

from eval import regime
from eval.counters import Counters
from eval.plot import ccdf, plot_tails
from eval.records import RequestRecord, encode, read_records
from eval.summary import row, table, write


def record(uncached: int, ttft: float, **changes: object) -> RequestRecord:
    fields = {
        "trajectory_id": "t",
        "source": "s",
        "turn": 1,
        "kind": "tool",
        "tool_name": None,
        "sent_s": 0.0,
        "gap_s": 0.0,
        "prompt_tokens": 1000,
        "history_tokens": 900,
        "cached_tokens": 1000 - uncached,
        "output_tokens": 4,
        "ttft_s": ttft,
        "latency_s": ttft,
    }
    return RequestRecord(**(fields | changes))


def make_row(policy: str, requests: list[RequestRecord], **changes: object) -> dict:
    fields = {"workload": "w", "concurrency": 4, "seed": 1, "counters": Counters(70, 30)}
    return row(requests, [1.0, 3.0], policy=policy, **(fields | changes))


def test_row_has_the_agreed_fields() -> None:
    requests = [record(100 + i, i / 100) for i in range(101)]
    failed = record(0, 9.0, error="HTTP 500", ttft_s=None)
    got = make_row("rr", [*requests, failed])
    assert got["ttft_s"] == {"p50": 0.5, "p90": 0.9, "p99": 0.99, "mean": 0.5, "max": 1.0}
    assert got["uncached_tokens"] == {"p50": 150, "p90": 190, "p99": 199, "mean": 150, "max": 200}
    assert got["session_s"] == {"mean": 2.0, "p50": 2.0, "p99": pytest.approx(2.98)}
    assert (got["requests"], got["errors"]) == (101, 1)
    assert (got["evicted_tokens"], got["released_tokens"]) == (70, 30)
    assert list(got)[:14] == [
        *("policy", "schedule", "admission", "workload", "concurrency", "seed", "ttft_s", "uncached_tokens"),
        *("evicted_tokens", "released_tokens", "session_s", "requests", "errors", "lost_history_share"),
    ]


def test_lost_history_counts_returning_requests_only() -> None:
    requests = [
        record(551, 0.1),  # 449 of 900 cached: more than half lost
        record(550, 0.1),  # exactly half
        record(100, 0.1),
        record(1000, 0.1, turn=0, history_tokens=0),
    ]
    assert make_row("lru", requests)["lost_history_share"] == pytest.approx(1 / 3, abs=1e-6)


def test_empty_run_has_no_numbers_and_no_crash() -> None:
    got = make_row("lru", [], partial=True)
    assert got["ttft_s"]["p99"] is None
    assert got["partial"] is True
    assert "lru (partial)" in table([got])


def test_table_shows_ratios_to_lru() -> None:
    rows = [
        make_row("lru", [record(200, 0.4)]),
        make_row("rr", [record(50, 0.1)], counters=Counters(None, 0)),
    ]
    lines = table(rows).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["policy", "lru", "rr", ""]
    assert lines[3].lstrip().startswith("/ lru")
    assert lines[3].count("0.25x") == 10
    assert " - " in lines[2]


def test_counters_subtract() -> None:
    assert Counters(10, 5) - Counters(4, 1) == Counters(6, 4)
    assert Counters(None, 5) - Counters(4, 1) == Counters(None, 4)


def test_records_round_trip(tmp_path) -> None:
    items = [record(3, 0.5), record(0, 1.0, error="gone", ttft_s=None)]
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(map(encode, items)))
    assert list(read_records(path)) == items
    assert json.loads(path.read_text().splitlines()[0])["uncached_tokens"] == 3


def test_write_replaces_whole_files(tmp_path) -> None:
    path = tmp_path / "summary.json"
    write([make_row("lru", [record(1, 0.1)])], path)
    write([], path)
    assert json.loads(path.read_text()) == []
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]


def test_ccdf_and_plot(tmp_path) -> None:
    values, share = ccdf([3, 1, 2, 2])
    assert values.tolist() == [1, 2, 2, 3]
    assert share.tolist() == [1.0, 0.75, 0.5, 0.25]
    failed = record(1, 1.0, error="x", ttft_s=None)
    runs = {"lru": [record(10, 0.2), record(0, 0.1)], "rr": [], "bad": [failed]}
    plot_tails(runs, tmp_path / "tails.png", "a title")
    assert (tmp_path / "tails.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("active", "live", "holds"),
    [([50, 90], [120, 140], True), ([50, 101], [120, 140], False), ([50, 90], [60, 99], False)],
)
def test_regime(active: list[int], live: list[int], holds: bool) -> None:
    requests = [record(1, 1.0, active_tokens=a, live_tokens=b) for a, b in zip(active, live, strict=True)]
    found = regime.measure(requests, pool_tokens=100)
    assert found.holds is holds
    assert ("NOT" in found.describe()) is not holds
    with pytest.raises(ValueError, match="no requests"):
        regime.measure([], 100)
