"""AIPerf ``mooncake_trace`` files: JSON lines with an input (a length, a text, messages or a payload).

Rows of one ``session_id`` are one conversation in order; ``delay`` (ms) is the wait after the reply before.
AIPerf puts the conversation so far in front of a row's input, except where the input is the whole
prompt: ``messages`` (in their default ``message_mode`` "history"), ``payload``, and everything under the
``context_mode`` "message_array_with_responses".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eval.importers.columns import ESTIMATED, Requests
from eval.importers.context import Context, count, mapping, seconds, text_chars
from eval.importers.finish import Draft
from eval.importers.turns import estimate
from eval.trace import Trajectory

EXPECTED = (
    'AIPerf mooncake_trace lines (one of "input_length", "text_input", "messages", "payload"; '
    '"session_id", "delay", "timestamp", "output_length" as options)'
)
PATTERNS = ("*.jsonl",)

INPUTS = ("input_length", "text_input", "messages", "payload")
TYPE = "mooncake_trace"
WHOLE = "message_array_with_responses"


class _Session:
    """Where one conversation is."""

    __slots__ = ("blocks", "number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = 0
        self.blocks: list[int] = []


def trajectories(context: Context) -> Iterator[Draft]:
    requests = Requests()
    sessions: dict[str, _Session] = {}
    names: list[str] = []
    for file in context.files:
        for number, row in context.lines(file, known):
            if sum(row.get(key) is not None for key in INPUTS) != 1:
                problem = f"exactly one of {', '.join(INPUTS)} is allowed"
                context.damage.record(file.path, number, problem)
                continue
            given = row.get("session_id")
            key = f"row-{len(requests)}" if given is None else str(given)
            session = sessions.get(key)
            if session is None:
                session = _Session(len(names))
                names.append(key)
                if given is not None:
                    sessions[key] = session
            _add(requests, session, row, context.block_tokens)
    for number, start, turns in requests.sessions("user"):
        item = Trajectory(
            trajectory_id=context.reference(names[number]),
            session_group=context.group_id(names[number]),
            source=context.source,
            start_s=start,
            turns=turns,
            n_turns=len(turns),
        )
        yield Draft(item)


def _add(requests: Requests, session: _Session, row: dict[str, Any], block_tokens: int) -> None:
    given = count(row.get("input_length"))
    tokens = max(1, estimate(_chars(row)) if given is None else given)
    output = count(row.get("output_length")) or 0
    if _whole(row):
        prompt, kept = tokens, _kept(session, row, tokens, block_tokens)
    else:
        prompt, kept = session.tokens + tokens, session.tokens
    delay, arrival = seconds(row.get("delay")), seconds(row.get("timestamp"))
    requests.append(
        session.number,
        prompt,
        kept,
        output,
        gap_s=delay / 1000 if delay is not None and delay >= 0 and session.tokens else None,
        arrival_s=None if arrival is None else arrival / 1000,
        flags=ESTIMATED if given is None else 0,
    )
    session.tokens = prompt + output


def _whole(row: dict[str, Any]) -> bool:
    """Whether a row's input is the whole prompt."""
    if row.get("messages") is not None:
        return row.get("message_mode", "history") == "history"
    return row.get("payload") is not None or row.get("context_mode") == WHOLE


def _kept(session: _Session, row: dict[str, Any], prompt: int, block_tokens: int) -> int:
    """Tokens of the context before: by block ids where the row has them, else all that fit."""
    blocks = row.get("hash_ids")
    if not isinstance(blocks, list):
        return min(session.tokens, prompt - 1)
    before, session.blocks = session.blocks, blocks
    pairs = enumerate(zip(before, blocks, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(before), len(blocks)))
    return min(same * block_tokens, session.tokens, prompt - 1)


def _chars(row: dict[str, Any]) -> int:
    """Characters of a row's input that has no token count."""
    if row.get("messages") is not None:
        return text_chars(row["messages"]) + len(json.dumps(row.get("tools") or ""))
    if row.get("payload") is not None:
        payload = mapping(row["payload"])
        return text_chars(payload.get("prompt")) + text_chars(payload.get("messages"))
    return text_chars(row.get("text_input"))


def known(row: dict[str, Any]) -> bool:
    """Whether a row has one of the format's inputs, and nothing that only an agent's log has."""
    return any(key in row for key in INPUTS) and row.get("type") in (None, TYPE) and "info" not in row
