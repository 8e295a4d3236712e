"""Reads logs piece by piece: files of a directory, JSON lines, parts of one large JSON document."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import ijson  # type: ignore[import-untyped]
import msgspec

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is counted as damaged and skipped: no log record is that long, and memory is bounded."""
PROBED_RECORDS = 50
"""So many records without a known one: the file has another format."""


class WrongFormat(ValueError):
    """A file does not hold what the chosen format holds."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(f"{path}: {found}; expected {expected}")


class LogFile(NamedTuple):
    """A file to import; ``named``: given by the user, not found in a directory."""

    path: Path
    named: bool


def find_files(paths: Iterable[Path], patterns: tuple[str, ...]) -> list[LogFile]:
    """Files as given, and those below a directory that match a pattern (also gzipped), sorted.

    Raises FileNotFoundError for a path that is missing or a directory without a matching file.
    """
    found = []
    for path in paths:
        if path.is_file():
            found.append(LogFile(path, named=True))
            continue
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such file or directory")
        names = {p for pattern in patterns for end in ("", ".gz") for p in path.rglob(pattern + end)}
        matches = sorted(p for p in names if p.is_file())
        if not matches:
            raise FileNotFoundError(f"{path}: no {' or '.join(patterns)} below this directory")
        found.extend(LogFile(match, named=False) for match in matches)
    return list(dict.fromkeys(found))


@dataclass
class Damage:
    """What could not be used: counted, with the first few places."""

    shown: int = 5
    records: int = 0
    files: int = 0
    places: list[str] = field(default_factory=list)

    def record(self, path: Path, place: int | str, problem: str) -> None:
        """Count one damaged record; ``place`` is its line, or where in the document it is."""
        self.records += 1
        self._show(f"{path}:{place}: {problem}")

    def file(self, error: WrongFormat) -> None:
        """Count one skipped file."""
        self.files += 1
        self._show(str(error))

    def _show(self, text: str) -> None:
        if len(self.places) < self.shown:
            self.places.append(text)


class _Counted(io.RawIOBase):
    """A raw file that tells ``advance`` how many bytes were read of it."""

    def __init__(self, raw: IO[bytes], advance: Callable[[int], object]) -> None:
        self._raw, self._advance = raw, advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = cast(io.FileIO, self._raw).readinto(buffer) or 0
        self._advance(count)
        return count


@contextmanager
def open_counted(path: Path, advance: Callable[[int], object]) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file for reading; ``advance`` gets the bytes read from the disk."""
    with open(path, "rb", buffering=0) as raw:
        stream: IO[bytes] = io.BufferedReader(_Counted(cast(IO[bytes], raw), advance), 2**18)
        if path.name.endswith(".gz"):
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=stream, mode="rb"))
        yield stream


def json_lines(stream: IO[bytes], path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(line number, object)`` for every line that holds a JSON object; the others go to ``damage``."""
    number = 0
    decode = msgspec.json.Decoder().decode
    try:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                damage.record(path, number, f"a line of more than {MAX_LINE_BYTES} bytes")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE_BYTES)
                continue
            if not line.strip():
                continue
            try:
                record = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                damage.record(path, number, str(error))
                continue
            if isinstance(record, dict):
                yield number, record
            else:
                damage.record(path, number, "not a JSON object")
    except (EOFError, gzip.BadGzipFile) as error:
        damage.record(path, number + 1, f"the gzip data is damaged: {error}")


def json_parts(
    stream: IO[bytes], path: Path, damage: Damage, wanted: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    """``(place, value)`` for the values of one JSON document at the wanted places, one in memory at a time.

    Places are written as ijson does: ``info``, ``simulations.item``. A document that breaks off yields what
    came before and is counted in ``damage``.
    """
    place, builder = "", None
    count = 0
    try:
        for prefix, event, value in ijson.parse(stream, use_float=True):
            if builder is None:
                if prefix not in wanted or event in ("map_key", "end_map", "end_array"):
                    continue
                place, builder = prefix, ijson.ObjectBuilder()
            builder.event(event, value)
            if prefix == place and event not in ("start_map", "start_array", "map_key"):
                part, builder = builder.value, None
                count += 1
                yield place, part
    except (ijson.JSONError, EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())[:120]
        damage.record(path, f"after {count} parts", f"damaged JSON: {problem}")


def size(files: Iterable[LogFile]) -> int:
    """Bytes on disk."""
    return sum(os.stat(file.path).st_size for file in files)
