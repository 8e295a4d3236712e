"""What a decode worker tells a prefill worker, and how a batch of it is written and read.

A batch is `{"ended": [{"room": int, "output_tokens": int, "aborted": bool, "final": bool, "tool_calls":
[{"name": str, "arguments": str}] | null, "extra_key": str | null, "cache_salt": str | null, "age_s": float}]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving.hints import HintError, parse

ENDED = "agentcache.ended"
"""`DumperControlReqInput.method` of a batch on its way to the schedulers; see `serving.hints.COMPLETE`."""

MAX_MESSAGES = 256
"""In one batch."""
MAX_BATCH_BYTES = 1 << 20
MAX_ROOM = (1 << 63) - 1
"""SGLang's router and transfer engines treat a room as a signed 64-bit number."""
MAX_TOKENS = 1 << 31
MAX_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one request on the decode side.

    Attributes:
        room: the request's `bootstrap_room`.
        output_tokens: how many tokens it generated; the prefill side has the KV of none of them.
        aborted: it ended early; what its trajectory waits for now is not known.
        final: it said that no request will follow.
        tool_calls: the calls in its output; empty for none, None if they could not be told.
        extra_key, cache_salt: its namespace; the message is void for any other.
        age_s: seconds from the end to the sending of this message.
    """

    room: int
    output_tokens: int
    aborted: bool = False
    final: bool = False
    tool_calls: tuple[ToolCall, ...] | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    age_s: float = 0.0

    def aged(self, age_s: float) -> Ended:
        return replace(self, age_s=min(max(age_s, 0.0), MAX_AGE_S))

    def pack(self) -> dict[str, Any]:
        """JSON values."""
        calls = self.tool_calls
        return {
            **{name: getattr(self, name) for name in _FIELDS},
            "tool_calls": None
            if calls is None
            else [{"name": c.name, "arguments": c.arguments} for c in calls],
        }


_FIELDS = tuple(field.name for field in fields(Ended))


def parse_batch(body: object) -> list[Ended]:
    """Read a batch strictly.

    Raises:
        HintError: names the field and what is allowed.
    """
    if not isinstance(body, Mapping) or set(body) != {"ended"} or not isinstance(body["ended"], list):
        raise HintError("body", "must be an object with the list ended and nothing else")
    if len(body["ended"]) > MAX_MESSAGES:
        raise HintError("ended", f"{len(body['ended'])} messages; at most {MAX_MESSAGES} are allowed")
    return [_message(item, f"ended[{index}]") for index, item in enumerate(body["ended"])]


def _message(item: object, where: str) -> Ended:
    if not isinstance(item, Mapping):
        raise HintError(where, f"must be an object with {', '.join(_FIELDS)}")
    for name in item:
        if name not in _FIELDS:
            raise HintError(f"{where}.{name}", f"unknown field; allowed are {', '.join(_FIELDS)}")
    # The calls are as a client would declare them.
    calls = parse({"tool_calls": item.get("tool_calls")}, where).tool_calls
    return Ended(
        room=_integer(item, "room", where, MAX_ROOM),
        output_tokens=_integer(item, "output_tokens", where, MAX_TOKENS),
        aborted=_boolean(item, "aborted", where),
        final=_boolean(item, "final", where),
        tool_calls=calls,
        extra_key=_text(item, "extra_key", where),
        cache_salt=_text(item, "cache_salt", where),
        age_s=_age(item.get("age_s", 0.0), f"{where}.age_s"),
    )


def _integer(item: Mapping[str, Any], name: str, where: str, maximum: int) -> int:
    value = item.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise HintError(f"{where}.{name}", f"required; must be an integer from 0 to {maximum}")
    return value


def _boolean(item: Mapping[str, Any], name: str, where: str) -> bool:
    value = item.get(name, False)
    if not isinstance(value, bool):
        raise HintError(f"{where}.{name}", "must be true or false")
    return value


def _text(item: Mapping[str, Any], name: str, where: str) -> str | None:
    value = item.get(name)
    if not isinstance(value, str | None):
        raise HintError(f"{where}.{name}", "must be a string or null")
    return value or None


def _age(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_AGE_S:
        raise HintError(field, f"must be a number of seconds from 0 to {MAX_AGE_S:.0f}")
    return float(value)
