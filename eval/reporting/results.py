"""A folder of results: rows of many runs, grouped over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval import summary
from eval.records import RequestRecord, read_records
from eval.sim.names import file_stem
from eval.summary import Row

FILES = ("results.json", "summary.json")


@dataclass(frozen=True)
class Metric:
    """One number of a row. ``better``: -1 if less is better, 1 if more is."""

    title: str
    path: tuple[str, ...]
    form: str
    better: int = -1

    def of(self, row: Row) -> float | None:
        """Its value, None where the row does not have it."""
        value: Any = row
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _spread(title: str, name: str, form: str) -> tuple[Metric, ...]:
    parts = ("p50", "p90", "p99", "mean", "max")
    return tuple(Metric(f"{title} {part}", (name, part), form) for part in parts)


METRICS: tuple[Metric, ...] = (
    *_spread("TTFT s,", "ttft_s", ".3g"),
    *_spread("uncached tokens,", "uncached_tokens", ",.0f"),
    Metric("lost more than half of the history", ("lost_history_share",), ".1%"),
    Metric("evicted tokens", ("evicted_tokens",), ",.0f"),
    Metric("session s, mean", ("session_s", "mean"), ",.1f"),
    Metric("session s, p99", ("session_s", "p99"), ",.1f"),
    Metric("goodput tokens/s", ("goodput_tok_s",), ",.0f", 1),
    Metric("makespan s", ("makespan_s",), ",.0f"),
)
BY_TITLE: Mapping[str, Metric] = {metric.title: metric for metric in METRICS}


@dataclass(frozen=True)
class Cell:
    """Where policies are compared: everything of a run but its policy and seed."""

    workload: str
    schedule: str
    admission: str
    concurrency: int


@dataclass
class Results:
    """Complete rows by cell, policy and seed; the policies in the order of the file."""

    folder: Path
    rows: dict[Cell, dict[str, dict[int, Row]]] = field(default_factory=dict)
    policies: list[str] = field(default_factory=list)
    partial: int = 0
    """Rows of interrupted runs, which are left out."""
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read a folder that `simulate`, `replay` or `demo` wrote. Raises ValueError, OSError."""
        path = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if path is None:
            raise ValueError(f"{folder}: has neither {' nor '.join(FILES)}")
        try:
            rows = json.loads(path.read_text())
            results = cls(folder)
            for row in rows:
                results.add(row)
        except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: not a list of rows: {error!r}") from None
        if not results.rows:
            raise ValueError(f"{path}: holds no complete run")
        described = folder / "sweep.json"
        if described.is_file():
            results.about = json.loads(described.read_text())
        return results

    def add(self, row: Row) -> None:
        """Take one row in."""
        if row.get("partial"):
            self.partial += 1
            return
        cell = Cell(row["workload"], row["schedule"], row["admission"], row["concurrency"])
        policy = row["policy"]
        if policy not in self.policies:
            self.policies.append(policy)
        self.rows.setdefault(cell, {}).setdefault(policy, {})[row["seed"]] = row

    def series(self) -> Iterator[tuple[Cell, list[Cell]]]:
        """Cells that differ in concurrency only, in its order; with each group its first cell as the name."""
        groups: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.rows:
            groups.setdefault((cell.workload, cell.schedule, cell.admission), []).append(cell)
        for cells in groups.values():
            cells.sort(key=lambda cell: cell.concurrency)
            yield cells[0], cells

    def values(self, cell: Cell, policy: str, metric: Metric) -> dict[int, float]:
        """The metric by seed."""
        rows = self.rows[cell].get(policy, {})
        found = {seed: metric.of(row) for seed, row in rows.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def mean(self, cell: Cell, policy: str, metric: Metric) -> float | None:
        """Mean over the seeds."""
        values = self.values(cell, policy, metric)
        return sum(values.values()) / len(values) if values else None

    def requests(self, cell: Cell, policy: str) -> list[RequestRecord]:
        """The requests of all seeds; empty if the folder does not have them."""
        found: list[RequestRecord] = []
        for seed in self.rows[cell].get(policy, {}):
            stem = file_stem(policy, cell.schedule, cell.admission, cell.concurrency, seed)
            path = self.folder / "requests" / f"{stem}.jsonl"
            if path.is_file():
                found.extend(read_records(path))
        return found

    def pressure(self, cell: Cell, policy: str) -> dict[str, Any] | None:
        """The memory pressure of the first seed, if the folder has it."""
        for seed in sorted(self.rows[cell].get(policy, {})):
            stem = file_stem(policy, cell.schedule, cell.admission, cell.concurrency, seed)
            path = self.folder / "pressure" / f"{stem}.json"
            if path.is_file():
                series: dict[str, Any] = json.loads(path.read_text())
                return series or None
        return None


def in_regime(results: Results, cell: Cell) -> bool:
    """Active demand fits the pool, active and idle together do not (at the median request of every run)."""
    found = [
        row["regime"] for rows in results.rows[cell].values() for row in rows.values() if "regime" in row
    ]
    return bool(found) and all(item["active_p50"] <= 1.0 < item["live_p50"] for item in found)


def pick(cells: Sequence[Cell], wanted: Callable[[Cell], bool]) -> Cell:
    """The last cell that is wanted, else the middle one."""
    return next((cell for cell in reversed(cells) if wanted(cell)), cells[len(cells) // 2])


BASELINE = "lru+completion"
"""What a policy is compared with, where it was run; else what `eval.summary` compares with."""


def baseline(results: Results) -> str:
    """The policy to compare with."""
    for name in (BASELINE, summary.BASELINE):
        if name in results.policies:
            return name
    return results.policies[0]
