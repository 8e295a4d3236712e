"""Reading a tool call's arguments, whatever they are, in bounded time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice

#: Longer text is cut here before anything else looks at it.
MAX_TEXT_CHARS = 4096
#: Longer strings inside the arguments are bulk (a file body, a prompt): only their length counts.
MAX_VALUE_CHARS = 2048
_MAX_LEAVES = 64
_MAX_DEPTH = 4

#: Fields that hold a shell command.
COMMAND_FIELDS = ("command", "cmd", "script", "commands")
#: Fields whose text is bulk, or a count of it, whatever its length.
BULK_FIELDS = re.compile(r"(chars|content|new_string|old_string|patch|input|prompt|code|text|message|body)$")

# The closing quote is optional so that an unclosed string is consumed once instead of being rescanned.
_LOOSE_FIELD = re.compile(
    r"(?<!\w)\"?([A-Za-z_-]\w{0,40})\"?\s?:\s?"
    r"(?:\"((?:[^\"\\]|\\.)*+)\"?|(-?\d{1,12}(?:\.\d{1,6})?)|(true|false))"
)


def read_arguments(arguments: object) -> tuple[dict[str, object], str]:
    """Return (leaf values by field name, the text of all short values); never raises, work is bounded."""
    if isinstance(arguments, (bytes, bytearray)):
        arguments = bytes(arguments[: MAX_TEXT_CHARS * 4]).decode("utf-8", "replace")
    if isinstance(arguments, str):
        return _read_text(arguments)
    fields: dict[str, object] = {}
    for key, value in _leaves(arguments):
        fields.setdefault(key, value)
    return fields, _joined(fields)


def _read_text(text: str) -> tuple[dict[str, object], str]:
    if len(text) <= MAX_TEXT_CHARS * 4 and text[:1] == "{":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            fields: dict[str, object] = {}
            for key, leaf in _leaves(value):
                fields.setdefault(key, leaf)
            return fields, _joined(fields)
    cut = text[:MAX_TEXT_CHARS]
    loose: dict[str, object] = {"length": float(len(text))} if len(text) > MAX_TEXT_CHARS else {}
    for count, match in enumerate(_LOOSE_FIELD.finditer(cut)):
        if count >= _MAX_LEAVES:
            break
        key, quoted, number, flag = match.groups()
        found: object = (
            quoted if quoted is not None else float(number) if number is not None else flag == "true"
        )
        if isinstance(found, str):
            found = found.replace("\\n", "\n").replace('\\"', '"')
        loose.setdefault(key.lower(), found)
    return loose, _joined(loose) if loose else cut


def _leaves(value: object) -> Iterator[tuple[str, object]]:
    """Yield (field name, leaf) depth first, at most `_MAX_LEAVES` of them and `_MAX_DEPTH` deep."""
    stack: list[tuple[str, object, int]] = [("", value, 0)]
    produced = 0
    while stack and produced < _MAX_LEAVES:
        key, item, depth = stack.pop()
        children: list[tuple[str, object]] = []
        if isinstance(item, Mapping):
            if depth < _MAX_DEPTH:
                children = [(str(k)[:40].lower(), v) for k, v in islice(item.items(), _MAX_LEAVES)]
        elif isinstance(item, (list, tuple)):
            words = [v for v in item[:_MAX_LEAVES] if isinstance(v, str)]
            if key in COMMAND_FIELDS and len(words) == len(
                item
            ):  # an argument vector, e.g. ["bash", "-lc", "ls"]
                produced += 1
                yield key, " ".join(word[:MAX_VALUE_CHARS] for word in words)
            elif depth < _MAX_DEPTH:
                children = [(key, v) for v in item[:_MAX_LEAVES]]
        else:
            produced += 1
            yield key, item
        stack.extend((k, v, depth + 1) for k, v in reversed(children))


def _joined(fields: Mapping[str, object]) -> str:
    parts = [
        v
        for k, v in fields.items()
        if isinstance(v, str) and len(v) <= MAX_VALUE_CHARS and not BULK_FIELDS.search(k)
    ]
    return " ".join(parts)[:MAX_TEXT_CHARS]
