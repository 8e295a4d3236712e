"""What every importer is given: the files, the rules for ids and arguments, the count of damage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eval.importers.finish import Draft
from eval.importers.reading import (
    PROBED_RECORDS,
    Damage,
    LogFile,
    WrongFormat,
    json_lines,
    json_parts,
    open_counted,
)

MAX_ARGUMENTS = 300
"""Characters of a call's arguments in a trace."""
MAX_VALUE = 160
"""A longer text among the arguments is a file's content or a message, not a parameter."""
COMMAND_KEYS = frozenset({"command", "cmd", "code", "script"})
"""Their start tells what a tool will do (and how long it takes), so it is kept."""

HEREDOC = re.compile(r"(<<-?\s*(?:'\w+'|\"\w+\"|\w+)[^\n]*)\n.*", re.DOTALL)
"""Its body is a file's content."""


@dataclass
class Context:
    """One import. ``source`` is written to every trajectory; ``advance`` gets the bytes read."""

    files: list[LogFile]
    source: str
    expected: str
    arguments: bool = True
    keep_ids: bool = False
    block_tokens: int = 512
    advance: Callable[[int], object] = lambda count: None
    damage: Damage = field(default_factory=Damage)
    _ids: dict[str, int] = field(default_factory=dict)

    def lines(
        self, file: LogFile, known: Callable[[dict[str, Any]], bool]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects of a JSONL file with line numbers. Raises WrongFormat if none of the first is known."""
        seen, recognised, damaged = 0, False, self.damage.records
        with open_counted(file.path, self.advance) as stream:
            for number, record in json_lines(stream, file.path, self.damage):
                seen += 1
                recognised = recognised or known(record)
                if seen == PROBED_RECORDS and not recognised:
                    break
                yield number, record
        if not recognised and (seen or self.damage.records > damaged):
            raise WrongFormat(
                file.path, self.expected, f"no such record among the first {seen}" if seen else "no JSON line"
            )

    def parts(self, file: LogFile, *wanted: str, required: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
        """Parts of one JSON document. Raises WrongFormat if it has none of the ``required`` ones."""
        recognised = False
        with open_counted(file.path, self.advance) as stream:
            for place, value in json_parts(stream, file.path, self.damage, wanted):
                recognised = recognised or place in required
                yield place, value
        if required and not recognised:
            raise WrongFormat(file.path, self.expected, f"it has no {' or '.join(required)}")

    def each_file(self, parse: Callable[[Context, LogFile], Iterator[Draft]]) -> Iterator[Draft]:
        """Parse file by file. One of another format is an error if the user named it, else it is skipped.

        Raises WrongFormat also if no file of all was of the format.
        """
        refused: WrongFormat | None = None
        used = 0
        for file in self.files:
            try:
                yield from parse(self, file)
                used += 1
            except WrongFormat as error:
                if file.named:
                    raise
                refused = error
                self.damage.file(error)
        if refused is not None and not used:
            raise refused

    def group_id(self, *native: str) -> str:
        """Name of a session in the trace: the log's own id, hashed unless ``keep_ids``."""
        return self._id(native, 12)

    def trajectory_id(self, *native: str) -> str:
        """A name for a new trajectory; a name that was given before gets ``-2``, ``-3``, ..."""
        wanted = self.reference(*native)
        uses = self._ids[wanted] = self._ids.get(wanted, 0) + 1
        return wanted if uses == 1 else f"{wanted}-{uses}"

    def reference(self, *native: str) -> str:
        """The trajectory id that these log ids have, without claiming it."""
        return self._id(native, 16)

    def _id(self, native: tuple[str, ...], digits: int) -> str:
        joined = "/".join(native)
        return joined if self.keep_ids else hashlib.sha256(joined.encode()).hexdigest()[:digits]

    def argument_text(self, arguments: object) -> str | None:
        """A call's arguments as JSON text of at most `MAX_ARGUMENTS` characters; None if not kept."""
        if not self.arguments or arguments is None:
            return None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = {"input": arguments}
        return json.dumps(_short(arguments), ensure_ascii=False)[:MAX_ARGUMENTS]


def _short(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {str(part): _short(item, str(part)) for part, item in value.items()}
    if isinstance(value, list):
        return [_short(item, key) for item in value]
    if not isinstance(value, str):
        return value
    if key not in COMMAND_KEYS:
        return value if len(value) <= MAX_VALUE else f"<str:{len(value)}>"
    command = HEREDOC.sub(r"\1 ...", value)
    return command if len(command) <= MAX_VALUE else command[:MAX_VALUE] + "..."


def seconds(value: object) -> float | None:
    """A time of a log as seconds since the epoch: ISO text (UTC where it names no zone) or a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def count(value: object) -> int | None:
    """A token count of a log; None where it has none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def mapping(value: object) -> dict[str, Any]:
    """A JSON object of a log; an empty one where the log has something else."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, Any]]:
    """The objects of a JSON list of a log."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def name(value: object) -> str | None:
    """A name in a log; None where it has none."""
    return value if isinstance(value, str) and value else None


def text_chars(content: object) -> int:
    """Characters of a message's content: text, or a list of blocks with text in them."""
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(map(text_chars, content))
    if isinstance(content, dict):
        return sum(text_chars(content.get(key)) for key in ("text", "content", "thinking", "output"))
    return 0


def stem(path: Path) -> str:
    """A file's name without its endings."""
    return path.name.split(".")[0]
