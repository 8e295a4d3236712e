"""Which header or body field of a request says which trajectory it belongs to, and which of them wins.

The order (DESIGN.md, "What a request may carry"): the explicit payload, SGLang's own ``session_id``, Dynamo's
headers, the agents' own headers, then body fields of the OpenAI and Anthropic APIs. A malformed header or
field is passed over, never refused: a proxy, or a use of the API that has nothing to do with us, may have put
it there.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sglang_agentcache.serving.hints import DECLARED, KEY, TOOLS, Hints, actions, is_id, pack, unpack
from sglang_agentcache.serving.tools import pack_names

#: Responses whose chain is remembered; one entry is two ids of about 40 characters.
MAX_CHAINED_RESPONSES = 65_536

#: Claude Code's ``metadata.user_id``: ``user_<hash>_account_<uuid>_session_<uuid>``, or the same as a JSON
#: object.
_CLAUDE_SESSION = re.compile(r"_session_([0-9A-Za-z-]+)$")


class Carried(NamedTuple):
    """What one HTTP request carries.

    ``declared`` comes from an explicit payload, ``found`` from headers and body fields, ``source`` says from
    which; ``tools`` are the names of the tools that the request declares.
    """

    declared: Hints = Hints()
    found: Hints = Hints()
    source: str = ""
    tools: tuple[str, ...] = ()


def find(session_id: object, headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[Hints, str]:
    """Return the identity that a request carries outside the explicit payload, and its source ("" for none).

    Args:
        session_id: SGLang's own session of the request, if any.
        headers: looked up by lower-case names.
        body: the parsed JSON body.
    """
    readers: tuple[Callable[[], tuple[Hints | None, str]], ...] = (
        lambda: (_session(session_id, headers), "session_id"),
        lambda: (_dynamo(headers), "dynamo"),
        lambda: (_claude_code(headers), "claude-code"),
        lambda: (_codex(headers), "codex"),
        lambda: (_opencode(headers), "opencode"),
        lambda: (_named(_id(headers.get("x-correlation-id"))), "header"),
        lambda: (_named(_anthropic_user(body.get("metadata"))), "anthropic-user"),
        lambda: (_named(_id(body.get("prompt_cache_key"))), "prompt-cache-key"),
    )
    for read in readers:
        hints, source = read()
        if hints is not None:
            return hints, source
    return Hints(), ""


class ResponseChains:
    """Follows ``previous_response_id``: all responses of a chain belong to the trajectory of the first."""

    source = "previous-response"

    def __init__(self, limit: int = MAX_CHAINED_RESPONSES) -> None:
        self._limit = limit
        self._first: OrderedDict[str, str] = OrderedDict()

    def follow(self, previous: object, response: str) -> Hints:
        """Note that ``response`` continues ``previous``; no hints where it continues none."""
        last = _id(previous)
        if last is None:
            return Hints()
        first = self._first.get(last, last)
        self._first[response] = first
        if len(self._first) > self._limit:
            self._first.popitem(last=False)
        return Hints(trajectory_id=first)


def payloads(sampling_params: object, kv_hints: object) -> Iterator[tuple[str, object]]:
    """Yield (place, payload) of every explicit payload in a ``/generate`` request, of one prompt or of a
    batch.

    Raises:
        HintError: a ``kv_hints`` action of ours has a version that is not read here.
    """
    for envelope, where in _each(kv_hints, "kv_hints"):
        yield from actions(envelope, where)
    for params, where in _each(sampling_params, "sampling_params"):
        custom_params = params.get("custom_params") if isinstance(params, Mapping) else None
        if isinstance(custom_params, Mapping) and custom_params.get(KEY) is not None:
            yield f"{where}.custom_params.{KEY}", custom_params[KEY]


def attach(sampling_params: object, carried: Carried, prompts: int) -> object:
    """Return ``sampling_params`` (one object or a list of them) with what was carried packed into each.

    Nothing is changed in place. In a request with several prompts what was found is left out: one session
    cannot grow in several directions at once, and SGLang itself spreads ``session_id`` over the batch.
    """
    if prompts > 1:
        carried = Carried(declared=carried.declared, tools=carried.tools)
    if isinstance(sampling_params, list):
        return [_attached(params, carried) for params in sampling_params]
    return _attached(sampling_params, carried)


def _attached(params: object, carried: Carried) -> object:
    given = {} if params is None else params
    custom_params = given.get("custom_params") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(custom_params, Mapping | None):
        return params
    rest = dict(custom_params or {})
    own, source = unpack(rest.pop(KEY, None), f"custom_params.{KEY}")
    hints = own.over(carried.declared).over(carried.found)
    packed = pack(hints, source or (DECLARED if carried.declared.trajectory_id else carried.source))
    if carried.tools:
        packed[TOOLS] = pack_names(carried.tools)
    if packed:
        rest[KEY] = packed
    if rest == (custom_params or {}):
        return params
    return {**given, "custom_params": rest or None}


def _each(value: object, where: str) -> Iterator[tuple[object, str]]:
    if isinstance(value, list):
        yield from ((item, f"{where}[{index}]") for index, item in enumerate(value))
    elif value is not None:
        yield value, where


def _id(value: object) -> str | None:
    text = value.strip() if isinstance(value, str) else None
    return text if is_id(text) else None


def _named(trajectory_id: str | None, parent_id: str | None = None) -> Hints | None:
    if trajectory_id is None:
        return None
    return Hints(trajectory_id=trajectory_id, parent_id=parent_id if parent_id != trajectory_id else None)


def member(session: str, agent: str) -> str | None:
    """Return the trajectory id of one agent inside a session, None where it would be too long.

    A JSON array of both, so that no two pairs share an id and none looks like a plain session id.
    """
    return _id(json.dumps([session, agent], separators=(",", ":"), ensure_ascii=False))


def _session(session_id: object, headers: Mapping[str, str]) -> Hints | None:
    hints = _named(_id(session_id))
    dynamo = _dynamo(headers)
    # Dynamo may send its session both ways; what its headers add is then about the same trajectory.
    return hints.over(dynamo) if hints and dynamo and hints.trajectory_id == dynamo.trajectory_id else hints


def _dynamo(headers: Mapping[str, str]) -> Hints | None:
    hints = _named(_id(headers.get("x-dynamo-session-id")), _id(headers.get("x-dynamo-parent-session-id")))
    if hints and headers.get("x-dynamo-session-final", "").strip().lower() == "true":
        hints = Hints(final=True).over(hints)
    return hints


def _claude_code(headers: Mapping[str, str]) -> Hints | None:
    session = _id(headers.get("x-claude-code-session-id"))
    agent = _id(headers.get("x-claude-code-agent-id"))
    if session is None or agent is None:
        return _named(session)
    parent = _id(headers.get("x-claude-code-parent-agent-id"))
    return _named(member(session, agent), session if parent is None else member(session, parent))


def _codex(headers: Mapping[str, str]) -> Hints | None:
    """A Codex thread is an agent: the main one has the session's id, a sub-agent's thread its own."""
    turn = _object(headers.get("x-codex-turn-metadata"))
    session = _id(headers.get("session-id")) or _id(turn.get("session_id"))
    thread = _id(headers.get("thread-id")) or _id(turn.get("thread_id"))
    if session is None or thread is None or thread == session:
        return _named(session or thread)
    parent = _id(headers.get("x-codex-parent-thread-id")) or _id(turn.get("parent_thread_id")) or session
    return _named(member(session, thread), session if parent == session else member(session, parent))


def _opencode(headers: Mapping[str, str]) -> Hints | None:
    return _named(_id(headers.get("x-session-id")), _id(headers.get("x-parent-session-id")))


def _anthropic_user(metadata: object) -> str | None:
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str):
        return None
    session = _id(_object(user).get("session_id"))
    if session is None and (match := _CLAUDE_SESSION.search(user)):
        session = _id(match[1])
    return session or _id(user)


def _object(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
