"""From one tool call to hashed terms and a few numbers, in bounded time whatever the arguments are.

Commands tell more than any other argument, so they are taken apart: the programs, their sub-commands and
flags, and the numbers that bound the run time (``sleep 60``, a timeout, how long a poll may block).
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sglang_agentcache.predictor.arguments import (
    BULK_FIELDS,
    COMMAND_FIELDS,
    MAX_VALUE_CHARS,
    read_arguments,
)
from sglang_agentcache.predictor.tool_calls import PERSON, UNKNOWN, ToolCall

#: Size of the hashed term space (a power of two).
N_TERMS = 1 << 16

_MAX_WORDS = 160

#: Names of the entries of `CallFeatures.numbers`.
NUMBERS = (
    "text_length",
    "bulk_length",
    "segments",
    "pipes",
    "sleep",
    "timeout",
    "block",
    "background",
    "limit",
    "chained",
    "paths",
)

_TIMEOUT_FIELDS = {"timeout": 1e-3, "timeout_ms": 1e-3, "timeout_s": 1.0, "timeout_seconds": 1.0}
_BLOCK_FIELDS = {"yield_time_ms": 1e-3, "wait_ms": 1e-3, "delayseconds": 1.0, "seconds": 1.0, "duration": 1.0}
_LIMIT_FIELDS = ("limit", "head_limit", "max_output_tokens", "max_tokens")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+")
_SEGMENT = re.compile(r"&&|\|\||[;|\n]|\$\(")
_QUOTED = re.compile(r"\"[^\"]{24,}+\"?|'[^']{24,}+'?")
_SLEEP = re.compile(r"\bsleep\s+(\d{1,6}(?:\.\d{1,3})?)([smh]?)")
_SHELL_TIMEOUT = re.compile(r"\btimeout\s+(?:-\S+\s+)*+(\d{1,6})([smh]?)\b|-timeout[= ](\d{1,6})([smh]?)")
_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Words before the program itself.
_WRAPPERS = frozenset(
    [
        "sudo",
        "time",
        "nohup",
        "env",
        "exec",
        "command",
        "timeout",
        "nice",
        "then",
        "do",
        "else",
        "if",
        "while",
        "!",
        "(",
        "{",
        "bash",
        "sh",
        "zsh",
    ]
)
#: Programs that say nothing about how long the line takes.
_SILENT = frozenset(
    [
        "cd",
        "echo",
        "export",
        "set",
        "source",
        "true",
        "pwd",
        "printf",
        "fi",
        "done",
        "tail",
        "head",
        "wc",
        "sort",
        "uniq",
        "tee",
        "pushd",
        "popd",
        "Set-Location",
    ]
)


class CallFeatures(NamedTuple):
    """What the estimators see of one call.

    ``terms``: sorted unique hashed terms, int64 [k]. ``numbers``: float64 [len(NUMBERS)], log10(1 + x) or NaN
    when the call does not say. ``tool``, ``program``, ``signature``: keys from coarse to exact, for histories
    and counters.
    """

    terms: np.ndarray
    numbers: np.ndarray
    tool: str
    program: str
    signature: str


def call_features(call: ToolCall | None) -> CallFeatures:
    """Features of ``call`` (None: the pause of a person)."""
    if call is None:
        return _PERSON_FEATURES
    return _UNKNOWN_FEATURES if call == UNKNOWN else _read(call)


def _read(call: ToolCall) -> CallFeatures:
    fields, text = read_arguments(call.arguments)
    command = _command_of(fields)
    scan = _Scan()
    name = call.name or "<unnamed>"
    words = [f"name={name}"]
    scan.read_fields(fields)
    program = ""
    if command:
        program = scan.read_command(command, words)
        text = command
    else:
        for key, value in fields.items():
            if BULK_FIELDS.search(key):
                continue
            words.append(f"field={key}")
            if isinstance(value, str) and len(value) <= 40:
                words.append(f"{key}={value}")
    tokens = _WORD.findall(_QUOTED.sub(" quoted ", text[:MAX_VALUE_CHARS]))[:_MAX_WORDS]
    lowered = [token.lower() if not token[0].isdigit() else f"#{len(token)}" for token in tokens]
    words.extend(lowered)
    words.extend(f"{first} {second}" for first, second in itertools.pairwise(lowered))
    words.extend(scan.terms())
    words.extend([f"{name}|{word}" for word in words[1:24]])
    scan.text_length = len(text)
    program_key = f"{name}|{program}" if program else name
    # The command itself identifies a repeated run; other arguments name a file, and the length hardly
    # matters.
    signature = f"{name}|{zlib.crc32(text.encode('utf-8', 'replace')):08x}"
    return CallFeatures(_hash_terms(words), scan.numbers(), name, program_key, signature)


def _command_of(fields: Mapping[str, object]) -> str:
    for key in COMMAND_FIELDS:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return value[:MAX_VALUE_CHARS]
    return ""


class _Scan:
    """Collects the numbers of one call while its fields and its command are read."""

    def __init__(self) -> None:
        self.text_length = 0
        self.bulk = 0.0
        self.segments = self.pipes = self.chained = self.paths = 0
        self.sleep = self.timeout = self.block = self.limit = math.nan
        self.background = False

    def read_fields(self, fields: Mapping[str, object]) -> None:
        for key, value in fields.items():
            if isinstance(value, bool):
                self.background |= value and "background" in key
            elif isinstance(value, str):
                if BULK_FIELDS.search(key) or len(value) > MAX_VALUE_CHARS:
                    self.bulk += len(value)
                elif "background" in key:
                    self.background |= value.lower() == "true"
            elif isinstance(value, (int, float)) and _finite(value):
                self._read_number(key, float(value))

    def _read_number(self, key: str, value: float) -> None:
        if key in _TIMEOUT_FIELDS:
            self.timeout = value * _TIMEOUT_FIELDS[key]
        elif key in _BLOCK_FIELDS:
            self.block = value * _BLOCK_FIELDS[key]
        elif key in _LIMIT_FIELDS:
            self.limit = value
        elif key.endswith("chars") or key == "length":
            self.bulk += value

    def read_command(self, command: str, words: list[str]) -> str:
        """Add the terms of a shell command to ``words``; return its first telling program and sub-command."""
        for amount, unit in _SLEEP.findall(command):
            self.sleep = (0.0 if math.isnan(self.sleep) else self.sleep) + float(amount) * _UNIT[unit]
        bound = _SHELL_TIMEOUT.search(command)
        if bound and math.isnan(self.timeout):
            amount, unit = (bound[1], bound[2]) if bound[1] else (bound[3], bound[4])
            self.timeout = float(amount) * _UNIT[unit]
        bare = _QUOTED.sub(" quoted ", command)
        self.pipes = bare.count("|")
        self.chained = bare.count("&&") + bare.count(";") + bare.count("\n")
        self.paths = bare.count("/")
        self.background |= bare.rstrip().endswith("&")
        telling = ""
        programs = 0
        for segment in _SEGMENT.split(bare)[:24]:
            parts = _skip_wrappers(segment.split()[:24])
            if not parts:
                continue
            self.segments += 1
            program = parts[0].rsplit("/", 1)[-1][:32]
            words.append(f"run={program}")
            sub = next((p for p in parts[1:4] if p[:1].isalpha() and len(p) <= 24), "")
            pair = f"{program} {sub}" if sub else program
            words.append(f"run={pair}")
            words.extend(f"flag={program} {p[:24]}" for p in parts[1:] if p[:1] == "-")
            words.extend(f"arg={program} {p[:40]}" for p in parts[1:6] if p[:1] != "-")
            if program in _SILENT:
                continue
            programs += 1
            if programs <= 4:
                words.append(f"run{programs}={pair}")
            telling = telling or pair
        return telling or "shell"

    def terms(self) -> Iterator[str]:
        for label, value in (("sleep", self.sleep), ("timeout", self.timeout), ("block", self.block)):
            if not math.isnan(value):
                yield f"{label}~{round(2 * math.log10(1 + max(value, 0.0)))}"
        if self.background:
            yield "background"

    def numbers(self) -> np.ndarray:
        raw = np.array(
            [
                self.text_length,
                self.bulk,
                self.segments,
                self.pipes,
                self.sleep,
                self.timeout,
                self.block,
                self.background,
                self.limit,
                self.chained,
                self.paths,
            ],
            dtype=np.float64,
        )
        return np.asarray(np.log10(1.0 + np.minimum(np.maximum(raw, 0.0), 1e9)))


def _skip_wrappers(parts: list[str]) -> list[str]:
    for index, part in enumerate(parts):
        if part in _WRAPPERS or part[:1] == "-" or "=" in part or part.isdigit() or part[0] in "#<>&)}":
            continue
        return [part.strip("\"'`({"), *parts[index + 1 :]] if part.strip("\"'`({") else []
    return []


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


def _hash_terms(words: list[str]) -> np.ndarray:
    # crc32 and not hash(): every rank, and the next process, must get the same number.
    hashed = {zlib.crc32(word.encode("utf-8", "replace")) & (N_TERMS - 1) for word in words}
    return np.fromiter(sorted(hashed), dtype=np.int64, count=len(hashed))


_PERSON_FEATURES = CallFeatures(_hash_terms([PERSON]), np.full(len(NUMBERS), np.nan), PERSON, PERSON, PERSON)
#: Most waits, where neither client nor output says what is waited for.
_UNKNOWN_FEATURES = _read(UNKNOWN)
