"""Our own trace format, to convert it with ``--to``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from eval.importers.context import Context
from eval.importers.finish import Draft
from eval.importers.reading import LogFile
from eval.trace import TraceError, Trajectory, check

EXPECTED = 'trajectories of the trace format (docs/traces.md: "trajectory_id", "session_group", "turns", ...)'
PATTERNS = ("*.jsonl",)


def trajectories(context: Context) -> Iterator[Draft]:
    yield from context.each_file(_trajectories)


def _trajectories(context: Context, file: LogFile) -> Iterator[Draft]:
    for number, line in context.lines(file, _known):
        try:
            item = msgspec.convert(line, Trajectory)
            check(item)
        except ValueError as error:
            raise TraceError(str(file.path), number, str(error)) from None
        yield Draft(item)


def _known(line: dict[str, Any]) -> bool:
    return "trajectory_id" in line and "turns" in line
