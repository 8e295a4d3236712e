"""What agents and benchmarks record, turned into the trace format of `eval.trace` (docs/traces.md).

One module per format. Each has ``EXPECTED`` (what its files hold, for error messages), ``PATTERNS`` (the file
names searched in a directory) and ``trajectories(context)``, a generator of `finish.Draft`.
"""

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from eval.importers.context import Context
from eval.importers.finish import Draft

FORMATS = {
    "claude-code": "eval.importers.claude_code",
    "codex": "eval.importers.codex",
    "tau2": "eval.importers.tau2",
    "mini-swe-agent": "eval.importers.mini_swe_agent",
    "swe-agent": "eval.importers.swe_agent",
    "openhands": "eval.importers.openhands",
    "mooncake": "eval.importers.mooncake",
    "aiperf": "eval.importers.aiperf",
    "trace": "eval.importers.trace",
}
"""Format name and its module; ``trace`` is our own format, to convert it with ``--to``."""


class Importer(Protocol):
    """What a format's module has."""

    EXPECTED: str
    PATTERNS: tuple[str, ...]

    def trajectories(self, context: Context) -> Iterator[Draft]: ...


def importer(name: str) -> Importer:
    """The module of a format. Raises KeyError for a name that is not in `FORMATS`."""
    return cast(Importer, importlib.import_module(FORMATS[name]))
