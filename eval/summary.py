"""Rows and tables: every tool that compares runs writes these."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.counters import Counters
from eval.records import RequestRecord

Row = dict[str, Any]
BASELINE = "lru"


def distribution(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p90, p99, mean and max (linear interpolation between samples); all None if there is no sample."""
    if not values:
        return dict.fromkeys(("p50", "p90", "p99", "mean", "max"))
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    numbers = {"p50": p50, "p90": p90, "p99": p99, "mean": np.mean(values), "max": max(values)}
    return {name: round(float(number), 6) for name, number in numbers.items()}


def row(
    requests: Sequence[RequestRecord],
    session_s: Sequence[float],
    *,
    policy: str,
    workload: str,
    concurrency: int,
    seed: int,
    counters: Counters,
    schedule: str = "fcfs",
    admission: str = "off",
    partial: bool = False,
) -> Row:
    """One run as one row; distributions are over the requests that succeeded.

    ``lost_history_share`` is the share of returning requests that found less than half of their history.
    """
    served = [record for record in requests if record.error is None]
    returned = [record for record in served if record.history_tokens > 0]
    sessions = distribution(session_s)
    result: Row = {
        "policy": policy,
        "schedule": schedule,
        "admission": admission,
        "workload": workload,
        "concurrency": concurrency,
        "seed": seed,
        "ttft_s": distribution([record.ttft_s for record in served if record.ttft_s is not None]),
        "uncached_tokens": distribution([record.uncached_tokens for record in served]),
        "evicted_tokens": counters.evicted,
        "released_tokens": counters.released,
        "session_s": {name: sessions[name] for name in ("mean", "p50", "p99")},
        "requests": len(served),
        "errors": len(requests) - len(served),
        "lost_history_share": (
            round(sum(record.lost_most_of_history for record in returned) / len(returned), 6)
            if returned
            else None
        ),
    }
    if partial:
        result["partial"] = True
    return result


COLUMNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("TTFT p50 s", ("ttft_s", "p50"), ".3f"),
    ("p90", ("ttft_s", "p90"), ".3f"),
    ("p99", ("ttft_s", "p99"), ".3f"),
    ("mean", ("ttft_s", "mean"), ".3f"),
    ("max", ("ttft_s", "max"), ".3f"),
    ("uncached p50", ("uncached_tokens", "p50"), ".0f"),
    ("p90", ("uncached_tokens", "p90"), ".0f"),
    ("p99", ("uncached_tokens", "p99"), ".0f"),
    ("mean", ("uncached_tokens", "mean"), ".0f"),
    ("max", ("uncached_tokens", "max"), ".0f"),
    ("lost >1/2", ("lost_history_share",), ".1%"),
    ("evicted", ("evicted_tokens",), ",.0f"),
    ("released", ("released_tokens",), ",.0f"),
    ("session mean s", ("session_s", "mean"), ".2f"),
    ("p99", ("session_s", "p99"), ".2f"),
    ("requests", ("requests",), ".0f"),
    ("errors", ("errors",), ".0f"),
)
"""Heading, place in the row, format."""


def _value(row: Row, place: tuple[str, ...]) -> float | None:
    value: Any = row
    for name in place:
        value = None if value is None else value.get(name)
    return value


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}x"


def table(rows: Sequence[Row], baseline: str = BASELINE) -> str:
    """A text table; below each row but the baseline's the same as a ratio to the baseline's row."""
    base = next((item for item in rows if item["policy"] == baseline), None)
    lines = [["policy", *(heading for heading, _, _ in COLUMNS)]]
    for item in rows:
        values = [(_value(item, place), form) for _, place, form in COLUMNS]
        name = item["policy"] + (" (partial)" if item.get("partial") else "")
        lines.append([name, *("-" if value is None else format(value, form) for value, form in values)])
        if base is not None and item is not base:
            ratios = [_ratio(_value(item, place), _value(base, place)) for _, place, _ in COLUMNS]
            lines.append([f"  / {baseline}", *ratios])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def write(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write rows as JSON, replacing the file in one step so that an interruption leaves the old one whole."""
    target = Path(path)
    draft = target.with_name(target.name + ".part")
    draft.write_text(json.dumps(list(rows), indent=1) + "\n")
    draft.replace(target)
