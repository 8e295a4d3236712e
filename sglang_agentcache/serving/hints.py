"""The payload by which a client names its trajectory and says what it knows: one schema for every carrier.

Clients send it as ``custom_params.agentcache`` (inside ``sampling_params`` on ``/generate``) or as the
payload of a ``kv_hints`` action of type ``agentcache.trajectory``::

    {"trajectory_id": str, "parent_id": str, "final": bool,
     "tool_calls": [{"name": str, "arguments": str | object}], "expected_idle_s": float}

SGLang's router (sglang-router 0.3.2) forwards neither on chat and ``/generate``. The same payload, as one JSON
text, gets through it in ``metadata.agentcache`` (OpenAI endpoints) and ``custom_labels.agentcache``
(``/generate``).

Every field is optional. ``parse`` is strict, for the process that can still answer with HTTP 400. ``unpack``
is lenient, for the scheduler: a bad hint costs only the hint, never the request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from sglang_agentcache.predictor.tool_calls import ToolCall

logger = logging.getLogger(__name__)

#: The key in SGLang's ``custom_params`` that holds the payload.
KEY = "agentcache"

#: ``action_type`` of the ``kv_hints`` action whose payload is ours, and the ``action_version`` (major) read.
ACTION_TYPE = "agentcache.trajectory"
ACTION_MAJOR = "1"

MAX_ID_CHARS = 256
MAX_TOOL_CALLS = 64
MAX_ARGUMENTS_BYTES = 64 * 1024

#: ``DumperControlReqInput.method`` that carries a `Completion`. SGLang 0.5.23 has no control message for
#: plugins; this one takes any JSON object to every scheduler and brings back each data-parallel answer.
COMPLETE = "agentcache.complete"

#: The key under which `carriers.attach` adds the names of a request's tools; clients may not send it.
TOOLS = "tools"

#: `source` of an identity that the client put into the payload itself.
DECLARED = "hint"


class HintError(ValueError):
    """A field of a payload is malformed. The text names the field and what is allowed."""

    def __init__(self, field: str, allowed: str) -> None:
        super().__init__(f"{field}: {allowed}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Hints:
    """What one request says about its trajectory; None where it says nothing.

    ``tool_calls`` is empty when the client declares that no tool was called, and ``expected_idle_s`` is the
    time in seconds until the next request of the trajectory.
    """

    trajectory_id: str | None = None
    parent_id: str | None = None
    final: bool | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    expected_idle_s: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def said(self) -> Iterator[str]:
        """Names of the fields that say something."""
        return (name for name in FIELDS if getattr(self, name) is not None)

    def over(self, weaker: Hints) -> Hints:
        """Return these hints, completed by ``weaker``.

        A parent belongs to the id it came with: it is not taken over for another id.
        """
        chosen: dict[str, Any] = {}
        for name in FIELDS:
            own = getattr(self, name)
            chosen[name] = own if own is not None else getattr(weaker, name)
        if self.parent_id is None and weaker.trajectory_id not in (None, chosen["trajectory_id"]):
            chosen["parent_id"] = None
        if chosen["parent_id"] == chosen["trajectory_id"]:
            chosen["parent_id"] = None
        return Hints(**chosen)


FIELDS = tuple(field.name for field in fields(Hints))


def is_id(value: object) -> TypeGuard[str]:
    """Whether ``value`` may name a trajectory: 1 to `MAX_ID_CHARS` printable characters, not only spaces."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        return False
    return value.isprintable() and not value.isspace()


def parse(payload: object, where: str) -> Hints:
    """Read a client's payload strictly; ``where`` names its place in the request, for the error.

    Raises:
        HintError: the payload is not an object, has an unknown field, or a field is malformed or too large.
    """
    if not isinstance(payload, Mapping):
        raise HintError(where, f"must be an object with any of {', '.join(FIELDS)}, not {_kind(payload)}")
    for name in payload:
        if name not in FIELDS:
            raise HintError(f"{where}.{name}", f"unknown field; allowed are {', '.join(FIELDS)}")
    hints = Hints(
        trajectory_id=_id(payload, "trajectory_id", where),
        parent_id=_id(payload, "parent_id", where),
        final=_final(payload.get("final"), f"{where}.final"),
        tool_calls=_tool_calls(payload.get("tool_calls"), f"{where}.tool_calls"),
        expected_idle_s=_seconds(payload.get("expected_idle_s"), f"{where}.expected_idle_s"),
    )
    if hints.parent_id is not None and hints.parent_id == hints.trajectory_id:
        raise HintError(f"{where}.parent_id", "must differ from trajectory_id")
    return hints


def parse_text(payload: object, where: str) -> Hints:
    """Read a payload that came as one JSON text, or as the object itself; as `parse`."""
    if isinstance(payload, str):
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError):
            raise HintError(where, "must be the JSON text of an object") from None
    return parse(payload, where)


def pack(hints: Hints, source: str) -> dict[str, str | bool | float]:
    """Return the form in which hints travel to the scheduler, under `KEY` of ``custom_params``.

    With SGLANG_USE_PICKLE_IPC=0, SGLang 0.5.23 decodes ``custom_params`` in the scheduler as
    ``CustomParamValue``: an object may hold only scalars there, and what is deeper raises in the receive loop
    and ends the scheduler. Hence the tool calls are one JSON text.
    """
    packed: dict[str, str | bool | float] = {
        name: value for name in FIELDS if name != "tool_calls" and (value := getattr(hints, name)) is not None
    }
    if hints.tool_calls is not None:
        calls = [{"name": call.name, "arguments": call.arguments} for call in hints.tool_calls]
        packed["tool_calls"] = json.dumps(calls, separators=(",", ":"))
    if hints.trajectory_id is not None:
        packed["source"] = source
    return packed


def unpack(payload: object, where: str) -> tuple[Hints, str]:
    """Read a payload leniently, packed or as a client wrote it: return the hints and the source of their id.

    A malformed payload gives no hints; the first one in a process is logged.
    """
    if payload is None:
        return Hints(), ""
    source: object = None
    if isinstance(payload, Mapping):
        payload = dict(payload)
        source = payload.pop("source", None)
        payload.pop(TOOLS, None)
        if isinstance(payload.get("tool_calls"), str):
            # What is not JSON stays a text, which parse() refuses below.
            with contextlib.suppress(ValueError, RecursionError):
                payload["tool_calls"] = json.loads(payload["tool_calls"])
    try:
        hints = parse(payload, where)
    except HintError as error:
        _warn_once(error)
        return Hints(), ""
    if hints.trajectory_id is None:
        return hints, ""
    return hints, source if isinstance(source, str) and source else DECLARED


def actions(kv_hints: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield (place, payload) of each `ACTION_TYPE` action in one ``kv_hints`` envelope, a dict or SGLang's
    struct.

    An envelope that is not one yields nothing: SGLang itself refuses it.

    Raises:
        HintError: the action has a version that is not read here.
    """
    listed = _get(kv_hints, "actions")
    for index, action in enumerate(listed if isinstance(listed, (list, tuple)) else ()):
        if _get(action, "action_type") != ACTION_TYPE:
            continue
        version = _get(action, "action_version")
        if not isinstance(version, str) or version.removeprefix("v").split(".")[0] != ACTION_MAJOR:
            raise HintError(
                f"{where}.actions[{index}].action_version", f"{ACTION_TYPE} is read in version {ACTION_MAJOR}"
            )
        yield f"{where}.actions[{index}].payload", _get(action, "payload")


def unpack_actions(kv_hints: object) -> Hints:
    """Read the trajectory action of one envelope leniently; of several, the first counts."""
    try:
        for where, payload in actions(kv_hints, "kv_hints"):
            return unpack(payload, where)[0]
    except HintError as error:
        _warn_once(error)
    return Hints()


@dataclass(frozen=True, slots=True)
class Completion:
    """The body of ``POST /agentcache/complete``: which trajectory of which namespace has ended."""

    trajectory_id: str
    extra_key: str | None = None
    cache_salt: str | None = None

    @classmethod
    def parse(cls, body: object) -> Completion:
        """Read a request body; an empty ``extra_key`` or ``cache_salt`` means none, as in SGLang.

        Raises:
            HintError: names the field.
        """
        names = tuple(field.name for field in fields(cls))
        if not isinstance(body, Mapping):
            raise HintError("body", f"must be an object with {', '.join(names)}, not {_kind(body)}")
        for name in body:
            if name not in names:
                raise HintError(str(name), f"unknown field; allowed are {', '.join(names)}")
        trajectory_id = body.get("trajectory_id")
        if not is_id(trajectory_id):
            raise HintError("trajectory_id", f"required; {_ID_RULE}")
        for name in ("extra_key", "cache_salt"):
            if not isinstance(body.get(name), str | None):
                raise HintError(name, f"must be a string, not {_kind(body[name])}")
        return cls(trajectory_id, body.get("extra_key") or None, body.get("cache_salt") or None)


_ID_RULE = f"must be a string of 1 to {MAX_ID_CHARS} printable characters"


def _id(payload: Mapping[str, Any], name: str, where: str) -> str | None:
    value = payload.get(name)
    if value is None or is_id(value):
        return value
    raise HintError(f"{where}.{name}", _ID_RULE)


def _final(value: object, field: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise HintError(field, f"must be true or false, not {_kind(value)}")


def _seconds(value: object, field: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise HintError(field, f"must be a number of seconds, not {_kind(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise HintError(field, "must be a finite number of seconds, 0 or more")
    return seconds


def _tool_calls(value: object, field: str) -> tuple[ToolCall, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise HintError(field, f"must be a list of objects with name and arguments, not {_kind(value)}")
    if len(value) > MAX_TOOL_CALLS:
        raise HintError(field, f"{len(value)} calls; at most {MAX_TOOL_CALLS} are allowed")
    return tuple(_tool_call(call, f"{field}[{index}]") for index, call in enumerate(value))


def _tool_call(call: object, field: str) -> ToolCall:
    if not isinstance(call, Mapping):
        raise HintError(field, f"must be an object with name and arguments, not {_kind(call)}")
    for name in call:
        if name not in ("name", "arguments"):
            raise HintError(f"{field}.{name}", "unknown field; allowed are name, arguments")
    if not is_id(call.get("name")):
        raise HintError(f"{field}.name", f"required; {_ID_RULE}")
    return ToolCall(call["name"], _arguments(call.get("arguments", ""), f"{field}.arguments"))


def _arguments(value: object, field: str) -> str:
    if isinstance(value, Mapping):
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise HintError(field, "must be a string or a JSON object of reasonable depth") from None
    elif isinstance(value, str):
        text = value
    else:
        raise HintError(field, f"must be a string or an object, not {_kind(value)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise HintError(field, "must be valid Unicode") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise HintError(field, f"{size} bytes; at most {MAX_ARGUMENTS_BYTES} are allowed")
    return text


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", int: "a number", float: "a number"}
    return names.get(type(value)) or ("a list" if isinstance(value, list) else "an object")


def _get(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


_warned = False


def _warn_once(error: HintError) -> None:
    """A client that errs, errs on every request: one line says it, the rest would bury the log."""
    global _warned
    level = logging.DEBUG if _warned else logging.WARNING
    logger.log(level, "agentcache: a malformed hint is ignored: %s", error)
    _warned = True
