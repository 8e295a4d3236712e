"""Codex rollout files: ``~/.codex/sessions/**/rollout-*.jsonl``.

A request is the run of items that the model produced, closed by the ``token_count`` event with its usage
(``input_tokens`` includes the cached ones). Call outputs are items too; ``exec_command_end`` has durations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eval.importers.context import Context, count, mapping, mappings, name, seconds, stem, text_chars
from eval.importers.finish import Draft
from eval.importers.reading import LogFile
from eval.importers.turns import Call, Reply, TurnBuilder
from eval.trace import Trajectory

EXPECTED = 'Codex rollout lines ("type": "session_meta", "response_item", "event_msg", ... with "payload")'
PATTERNS = ("rollout-*.jsonl",)

AGENT = "codex"
LINE_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
REPLACED = frozenset({"context_compacted", "thread_rolled_back"})
INJECTED = ("<", "# AGENTS.md")
DURATIONS = frozenset({"exec_command_end", "mcp_tool_call_end", "patch_apply_end"})


def trajectories(context: Context) -> Iterator[Draft]:
    yield from context.each_file(_rollout)


class _Rollout:
    """The state of one file."""

    def __init__(self, context: Context) -> None:
        self.builder = TurnBuilder(context.argument_text)
        self.meta: dict[str, Any] = {}
        self.model: str | None = None
        self._reply: Reply | None = None
        self._counted = False
        self._total: object = None

    def item(self, payload: dict[str, Any], time: float | None) -> None:
        kind, role = name(payload.get("type")), payload.get("role")
        if kind in OUTPUTS:
            self.builder.result(str(payload.get("call_id")), text_chars(payload.get("output")), time)
        elif kind == "message" and (role in ("developer", "system") or _injected(payload)):
            self.builder.text(text_chars(payload.get("content")))
        elif kind == "message" and role == "user":
            self.builder.prompt(text_chars(payload.get("content")), time)
        else:
            self._generated(payload, time)

    def _generated(self, payload: dict[str, Any], time: float | None) -> None:
        if self._reply is None or self._counted or self.builder.has_input:
            self._reply, self._counted = self.builder.open(Reply()), False
        reply = self._reply
        reply.end = time if time is not None else reply.end
        arguments = payload.get("arguments", payload.get("input", payload.get("action")))
        reply.output_chars += text_chars(payload.get("content")) + text_chars(payload.get("summary"))
        if name(payload.get("type")) in CALLS:
            reply.output_chars += len(str(arguments))
            tool = name(payload.get("name")) or name(payload.get("type"))
            call_id = payload.get("call_id") or payload.get("id")
            reply.calls[str(call_id)] = Call(tool, arguments)

    def event(self, payload: dict[str, Any]) -> None:
        kind = name(payload.get("type"))
        if kind == "token_count":
            self._usage(payload.get("info"))
        elif kind in REPLACED:
            self.builder.compact()
        elif kind in DURATIONS and (duration := _duration(payload.get("duration"))) is not None:
            self.builder.duration(str(payload.get("call_id")), duration)

    def _usage(self, info: object) -> None:
        """The counts of the open reply; the event is repeated with the same total for rate limits."""
        usage = mapping(info).get("last_token_usage")
        total = mapping(info).get("total_token_usage")
        repeated = total is not None and total == self._total
        if not isinstance(usage, dict) or repeated or self._reply is None or self._counted:
            return
        self._total, self._counted = total, True
        self._reply.prompt_tokens = count(usage.get("input_tokens"))
        self._reply.cached_tokens = count(usage.get("cached_input_tokens"))
        self._reply.output_tokens = count(usage.get("output_tokens"))


def _rollout(context: Context, file: LogFile) -> Iterator[Draft]:
    rollout = _Rollout(context)
    for _, line in context.lines(file, _known):
        payload = line.get("payload")
        if not isinstance(payload, dict):
            continue
        time = seconds(line.get("timestamp"))
        match line.get("type"):
            case "session_meta":
                rollout.meta = rollout.meta or payload
            case "turn_context":
                rollout.model = name(payload.get("model")) or rollout.model
            case "response_item":
                rollout.item(payload, time)
            case "event_msg":
                rollout.event(payload)
            case "compacted":
                rollout.builder.compact()
    rollout.builder.close()
    if rollout.builder.turns:
        yield _draft(context, file, rollout)


def _known(line: dict[str, Any]) -> bool:
    return name(line.get("type")) in LINE_TYPES and isinstance(line.get("payload"), dict)


def _injected(payload: dict[str, Any]) -> bool:
    """Whether a "user" message was written by Codex: its environment, the state of a sub-agent, ..."""
    texts = [str(block.get("text")) for block in mappings(payload.get("content"))]
    return payload.get("role") == "user" and bool(texts) and texts[0].startswith(INJECTED)


def _draft(context: Context, file: LogFile, rollout: _Rollout) -> Draft:
    meta, turns = rollout.meta, rollout.builder.turns
    thread = str(meta.get("id") or stem(file.path))
    parent = _parent(meta.get("source"))
    forked = meta.get("forked_from_id") is not None
    item = Trajectory(
        trajectory_id=context.trajectory_id(thread),
        session_group=context.group_id(parent or thread),
        source=context.source,
        agent=AGENT,
        agent_version=name(meta.get("cli_version")),
        model=rollout.model,
        subagent=_is_subagent(meta.get("source")),
        parent=context.reference(parent) if parent else None,
        start_s=rollout.builder.start,
        turns=turns,
        n_turns=len(turns),
    )
    return Draft(item, None if forked else turns[0].cached_tokens)


def _is_subagent(source: object) -> bool:
    return isinstance(source, dict) and "subagent" in source


def _parent(source: object) -> str | None:
    spawn = mapping(mapping(mapping(source).get("subagent")).get("thread_spawn"))
    parent = spawn.get("parent_thread_id")
    return None if parent is None else str(parent)


def _duration(value: object) -> float | None:
    """Seconds of ``{"secs": ..., "nanos": ...}``; other forms have no stated unit."""
    whole, rest = seconds(mapping(value).get("secs")), seconds(mapping(value).get("nanos"))
    return None if whole is None else whole + (rest or 0.0) / 1e9
