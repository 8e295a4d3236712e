"""What an idle trajectory waits for: tool calls, or a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Name under which a pause without any tool call is learned. Angle brackets cannot occur in a tool name.
PERSON = "<person>"

#: Parallel calls beyond this many are ignored: the last return of a larger set hardly differs.
MAX_PARALLEL_CALLS = 32

#: Longest tool name that is told apart; APIs allow 64 characters, MCP prefixes make it longer.
MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the model wrote it: the name, and the arguments as text or as a parsed object."""

    name: str
    arguments: object = ""


#: Nothing is known of the call, so the prior of all tools answers for it.
UNKNOWN = ToolCall("")


@dataclass(frozen=True, slots=True)
class Wait:
    """All calls of one turn; the trajectory returns when the last has. No calls: it waits for a person."""

    calls: tuple[ToolCall, ...] = ()


def as_wait(value: object) -> Wait:
    """Return ``value`` as a `Wait`.

    Accepted: a `Wait`, a `ToolCall`, None (a person), a mapping with ``name`` and ``arguments``, a pair
    ``(name, arguments)``, or a tuple of any number of these calls (parallel calls). Nothing raises: what
    cannot be read becomes an unnamed tool, which the prior of all tools answers for.
    """
    if isinstance(value, Wait):
        return value
    if value is None:
        return Wait()
    if isinstance(value, tuple) and not (len(value) == 2 and isinstance(value[0], str)):
        return Wait(tuple(_as_call(item) for item in value[:MAX_PARALLEL_CALLS]))
    return Wait((_as_call(value),))


def _as_call(value: object) -> ToolCall:
    name: object
    arguments: object
    if isinstance(value, ToolCall):
        name, arguments = value.name, value.arguments
    elif isinstance(value, Mapping):
        name, arguments = value.get("name"), value.get("arguments", "")
    elif isinstance(value, tuple) and len(value) == 2:
        name, arguments = value
    else:
        name, arguments = value, ""
    return ToolCall(name[:MAX_NAME_CHARS] if isinstance(name, str) else "", arguments)
