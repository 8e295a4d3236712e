"""mini-swe-agent trajectories: ``*.traj.json`` of version 1 (actions in the text) and 2 (tool calls)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from eval.importers.context import Context, count, mapping, mappings, name, seconds, stem, text_chars
from eval.importers.finish import Draft
from eval.importers.reading import LogFile, WrongFormat
from eval.importers.turns import Call, Reply, TurnBuilder
from eval.trace import Trajectory

EXPECTED = 'a mini-swe-agent trajectory ({"info": ..., "messages": [{"role": ..., "content": ...}]})'
PATTERNS = ("*.traj.json",)

AGENT = "mini-swe-agent"
MESSAGES = ("messages.item", "item")
"""The second is the first releases' form, a list alone."""
TOOL = "bash"
"""The only tool that the agent has."""
ACTION = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n?```", re.DOTALL)


def trajectories(context: Context) -> Iterator[Draft]:
    yield from context.each_file(_trajectory)


class _Run:
    """The state of one file."""

    def __init__(self, context: Context) -> None:
        self.builder = TurnBuilder(context.argument_text)
        self.system = sha256()
        self.created: float | None = None
        self._waiting: list[str] = []

    def message(self, message: dict[str, Any]) -> None:
        extra = mapping(message.get("extra"))
        time = seconds(extra.get("timestamp", message.get("timestamp")))
        content = message.get("content")
        match message.get("role"):
            case "system":
                self.builder.system(text_chars(content))
                self.system.update(str(content).encode())
            case "assistant":
                self._assistant(message, extra, time)
            case "tool" | "user" if self._waiting:
                call = message.get("tool_call_id")
                done = str(call) if call is not None else self._waiting[0]
                self._waiting = [other for other in self._waiting if other != done]
                self.builder.result(done, text_chars(content), time)
            case "user" if self.builder.turns:
                # Not a person: the agent itself says what is wrong with a reply without an action.
                self.builder.result(None, text_chars(content), time)
            case "user":
                self.builder.prompt(text_chars(content), time)

    def _assistant(self, message: dict[str, Any], extra: dict[str, Any], time: float | None) -> None:
        response = mapping(extra.get("response"))
        usage = mapping(response.get("usage"))
        created, before = seconds(response.get("created")), self.created
        self.created = created
        content = message.get("content")
        calls = _actions(extra, content)
        self._waiting = list(calls)
        details = mapping(usage.get("prompt_tokens_details"))
        self.builder.request(
            Reply(
                prompt_tokens=count(usage.get("prompt_tokens")),
                output_tokens=count(usage.get("completion_tokens")),
                cached_tokens=count(details.get("cached_tokens")),
                start=created,
                output_chars=text_chars(content) + len(str(message.get("tool_calls") or "")),
                end=time,
                calls=calls,
            ),
            # Only where there is nothing finer: whole seconds, start to start.
            interval_s=created - before
            if created is not None and before is not None and time is None
            else None,
        )


def _actions(extra: dict[str, Any], content: object) -> dict[str, Call]:
    """The commands of a reply by call id; version 1 has one, in a code block."""
    actions = extra.get("actions")
    if isinstance(actions, list):
        return {
            str(action.get("tool_call_id") or f"action-{index}"): Call(
                TOOL, {"command": action.get("command")}
            )
            for index, action in enumerate(mappings(actions))
        }
    found = ACTION.search(content) if isinstance(content, str) else None
    return {"action-0": Call(TOOL, {"command": found.group(1)})} if found else {}


def _trajectory(context: Context, file: LogFile) -> Iterator[Draft]:
    run = _Run(context)
    info: dict[str, Any] = {}
    messages = 0
    instance = stem(file.path)
    wanted = ("info", "instance_id", *MESSAGES)
    for place, part in context.parts(file, *wanted, required=MESSAGES):
        if place == "info" and isinstance(part, dict):
            info = part
        elif place == "instance_id" and part:
            instance = str(part)
        elif isinstance(part, dict) and "role" in part:
            run.message(part)
            messages += 1
    if not messages:
        raise WrongFormat(file.path, context.expected, "none of its parts is a message")
    turns = run.builder.turns
    if not turns:
        return
    config = mapping(info.get("config"))
    prefix = run.builder.system_tokens
    yield Draft(
        Trajectory(
            trajectory_id=context.trajectory_id(instance),
            session_group=context.group_id(instance),
            source=context.source,
            agent=AGENT,
            agent_version=name(info.get("mini_version")),
            model=name(mapping(config.get("model")).get("model_name")),
            shared_prefix_id=f"mswe_{run.system.hexdigest()[:12]}" if prefix else None,
            shared_prefix_tokens=prefix,
            shared_prefix_est="system message chars/4" if prefix else None,
            start_s=run.builder.start,
            turns=turns,
            n_turns=len(turns),
        )
    )
