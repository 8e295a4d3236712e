"""SWE-agent trajectories: ``*.traj``, one JSON document per instance.

The log has no token count per request, so all are estimates. Where a step shows its prompt (``query``), what
its history processors dropped or kept is seen; else prompts are the history's head and the steps in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

from eval.importers.context import Context, mappings, name, seconds, stem, text_chars
from eval.importers.finish import Draft
from eval.importers.reading import LogFile
from eval.importers.turns import Call, Reply, TurnBuilder
from eval.trace import Trajectory, replace_turn

EXPECTED = 'a SWE-agent trajectory ({"trajectory": [{"action": ..., "observation": ...}], "history": [...]})'
PATTERNS = ("*.traj",)

AGENT = "swe-agent"
ACTION_CHARS = 400
"""More of an action than a trace's arguments can hold."""


def trajectories(context: Context) -> Iterator[Draft]:
    yield from context.each_file(_trajectory)


@dataclass
class _Step:
    """What a step needs to become a turn, without its texts."""

    action: str
    observation_chars: int
    output_chars: int
    seconds: float | None
    prompt_chars: int | None = None
    kept_chars: int = 0


class _Queries:
    """Compares every prompt with the one before it, message by message."""

    def __init__(self) -> None:
        self._before: list[tuple[bytes, int]] = []

    def sizes(self, query: list[dict[str, Any]]) -> tuple[int, int]:
        """Characters of the whole prompt, and of what the previous prompt and its reply already were."""
        messages = [_fingerprint(message) for message in query]
        same = 0
        for before, now in zip(self._before, messages, strict=False):
            if before[0] != now[0]:
                break
            same += 1
        whole = bool(self._before) and same == len(self._before)
        kept = messages[: same + 1 if whole and _is_reply(query, same) else same]
        self._before = messages
        return sum(size for _, size in messages), sum(size for _, size in kept)


def _fingerprint(message: dict[str, Any]) -> tuple[bytes, int]:
    text = str((message.get("role"), message.get("content"), message.get("tool_calls")))
    chars = text_chars(message.get("content")) + len(str(message.get("tool_calls") or ""))
    return blake2b(text.encode(), digest_size=16).digest(), chars


def _is_reply(query: list[dict[str, Any]], index: int) -> bool:
    return index < len(query) and query[index].get("role") == "assistant"


def _trajectory(context: Context, file: LogFile) -> Iterator[Draft]:
    steps: list[_Step] = []
    queries = _Queries()
    builder = TurnBuilder(context.argument_text)
    system = sha256()
    info: dict[str, Any] = {}
    started = False
    wanted = ("trajectory.item", "history.item", "info")
    for place, part in context.parts(file, *wanted, required=("trajectory.item", "history.item")):
        if not isinstance(part, dict):
            continue
        if place == "info":
            info = part
        elif place == "trajectory.item":
            if "action" in part or "response" in part:
                steps.append(_step(part, queries))
        elif part.get("role") == "assistant" and not part.get("is_demo"):
            started = True
        elif not started:
            chars = text_chars(part.get("content"))
            if part.get("role") == "system":
                builder.system(chars)
                system.update(str(part.get("content")).encode())
            else:
                builder.prompt(chars, None)
    _turns(builder, steps)
    if builder.turns:
        yield _draft(context, file, builder, info, system.hexdigest()[:12])


def _step(part: dict[str, Any], queries: _Queries) -> _Step:
    action = str(part.get("action") or "").strip()
    response = part.get("response")
    step = _Step(
        action=action[:ACTION_CHARS],
        observation_chars=text_chars(part.get("observation")),
        output_chars=text_chars(response) or text_chars(part.get("thought")) + len(action),
        seconds=seconds(part.get("execution_time")),
    )
    if query := mappings(part.get("query")):
        step.prompt_chars, step.kept_chars = queries.sizes(query)
    return step


def _turns(builder: TurnBuilder, steps: list[_Step]) -> None:
    for step in steps:
        tool = step.action.split(maxsplit=1)[0] if step.action else None
        calls = {"step": Call(tool, {"command": step.action})} if tool else {}
        builder.request(
            Reply(
                output_chars=step.output_chars,
                prompt_chars=step.prompt_chars,
                kept_chars=step.kept_chars,
                calls=calls,
            )
        )
        builder.result("step", step.observation_chars, None, step.seconds)


def _draft(context: Context, file: LogFile, builder: TurnBuilder, info: dict[str, Any], system: str) -> Draft:
    instance = stem(file.path)
    prefix = builder.system_tokens
    # The agent does nothing between a reply and the next request but run the action.
    turns = [replace_turn(turn, gap_s=turn.tool_s) for turn in builder.turns]
    return Draft(
        Trajectory(
            trajectory_id=context.trajectory_id(instance),
            session_group=context.group_id(instance),
            source=context.source,
            agent=AGENT,
            agent_version=name(info.get("swe_agent_version")),
            shared_prefix_id=f"swea_{system}" if prefix else None,
            shared_prefix_tokens=prefix,
            shared_prefix_est="system message chars/4" if prefix else None,
            turns=turns,
            n_turns=len(turns),
        )
    )
