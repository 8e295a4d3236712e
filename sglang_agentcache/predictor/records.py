"""Training data: normalised agent traces and the server's own call log, as rows of one form."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from sglang_agentcache.predictor.censoring import fold_of
from sglang_agentcache.predictor.tool_calls import MAX_NAME_CHARS, ToolCall, Wait


def add_trace_argument(parser: argparse.ArgumentParser) -> None:
    """The option of every command that calls `read_records`."""
    parser.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="agent traces or call logs, JSON lines, plain or gzip",
    )


@dataclass(slots=True)
class WaitRecords:
    """Observed waits; rows of one session stand in time order.

    ``durations`` are seconds, ``censored`` says that the wait was still running then. ``sessions`` is one
    trajectory, ``groups`` what must stay together in a split (a session and its sub-agents). ``agents`` and
    ``sources`` are labels for reports, empty where unknown.
    """

    waits: list[Wait] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    censored: list[bool] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waits)

    def add(
        self,
        wait: Wait,
        duration_s: float,
        session: str,
        *,
        censored: bool = False,
        group: str = "",
        agent: str = "",
        source: str = "",
    ) -> None:
        self.waits.append(wait)
        self.durations.append(duration_s)
        self.censored.append(censored)
        self.sessions.append(session)
        self.groups.append(group or session)
        self.agents.append(agent)
        self.sources.append(source)

    def select(self, keep: Iterable[int]) -> WaitRecords:
        """The rows with these numbers, in this order."""
        rows = list(keep)
        return WaitRecords(
            **{each.name: [getattr(self, each.name)[i] for i in rows] for each in fields(self)}
        )

    def split(self, parts: int = 4) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of (train, validation); one group in ``parts`` is validation, whole groups only."""
        held = np.array([fold_of("validation|" + group, parts) == 0 for group in self.groups], dtype=bool)
        return np.flatnonzero(~held), np.flatnonzero(held)

    def is_tool(self) -> np.ndarray:
        """bool [n]: the row waits for tools, not for a person."""
        return np.array([bool(wait.calls) for wait in self.waits], dtype=bool)


def read_records(paths: Iterable[Path]) -> WaitRecords:
    """Read traces and call logs (told apart line by line), plain or gzip.

    Raises:
        ValueError: a file that cannot be read, or a line that is neither; names the file and the line.
    """
    records = WaitRecords()
    for path in paths:
        logged: list[tuple[str, float, int, ToolCall | None, float, bool]] = []
        try:
            for number, line in enumerate(_lines(path), 1):
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line)
                    if "turns" in entry:
                        _add_trajectory(records, entry)
                    else:
                        logged.append(_logged_call(entry, number))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    raise ValueError(
                        f"{path}, line {number}: neither a trajectory with 'turns' nor a call-log entry "
                        f"with 'trajectory', 'name', 'duration_s' ({type(error).__name__}: {error})"
                    ) from None
        except (OSError, EOFError) as error:
            raise ValueError(f"cannot read {path}: {error}") from None
        _add_log(records, logged)
    return records


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8") as lines:
        yield from lines


def _add_trajectory(records: WaitRecords, entry: dict) -> None:
    session = str(entry["trajectory_id"])
    for index, turn in enumerate(entry["turns"]):
        gap = turn.get("gap_s")
        if gap is None or not math.isfinite(gap) or (index == 0 and turn.get("kind") != "tool"):
            continue
        wait = Wait(_trace_calls(turn)) if turn.get("kind") == "tool" else Wait()
        records.add(
            wait,
            float(gap),
            session,
            group=str(entry.get("session_group") or session),
            agent=str(entry.get("agent") or ""),
            source=str(entry.get("source") or ""),
        )


def _trace_calls(turn: dict) -> tuple[ToolCall, ...]:
    """All calls of the turn, by name: of parallel ones a trace keeps only the arguments of the last to
    return, and no place in the order may tell which that was.
    """
    last = ToolCall(str(turn.get("tool_name") or "")[:MAX_NAME_CHARS], turn.get("tool_args") or "")
    names = [str(pair[0])[:MAX_NAME_CHARS] for pair in turn.get("tools") or [] if pair]
    if last.name in names:
        names.remove(last.name)
    return tuple(sorted([last, *(ToolCall(name) for name in names)], key=lambda call: call.name))


def _logged_call(entry: dict, number: int) -> tuple[str, float, int, ToolCall | None, float, bool]:
    duration = float(entry["duration_s"])
    if not math.isfinite(duration):
        raise ValueError("duration_s must be a finite number of seconds")
    name = entry["name"]
    call = ToolCall(str(name)[:MAX_NAME_CHARS], entry.get("arguments", "")) if name else None
    return (
        str(entry["trajectory"]),
        float(entry.get("t_s", number)),
        number,
        call,
        duration,
        bool(entry.get("censored", False)),
    )


def _add_log(
    records: WaitRecords, logged: list[tuple[str, float, int, ToolCall | None, float, bool]]
) -> None:
    """Lines of one trajectory and one time are parallel calls: together one wait, as long as the longest."""
    logged.sort(key=lambda row: (row[0], row[1], row[2]))
    start = 0
    while start < len(logged):
        stop = start + 1
        while stop < len(logged) and logged[stop][:2] == logged[start][:2]:
            stop += 1
        rows = logged[start:stop]
        calls = tuple(row[3] for row in rows if row[3] is not None)
        records.add(
            Wait(calls), max(row[4] for row in rows), rows[0][0], censored=any(row[5] for row in rows)
        )
        start = stop
