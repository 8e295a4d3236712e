"""Claude Code session files: ``~/.claude/projects/**/*.jsonl``.

A line is one content block of a message, so a reply is the lines that share a message id; its usage is the
sum input + cache reads + cache writes. Tool results are ``user`` lines. Sub-agents have files of their own
(``agentId``) or, in older versions, are ``isSidechain`` chains inside the session's file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from eval.importers.context import Context, count, mapping, mappings, name, seconds, text_chars
from eval.importers.finish import Draft
from eval.importers.reading import LogFile
from eval.importers.turns import Call, Reply, TurnBuilder, estimate
from eval.trace import Trajectory

EXPECTED = 'Claude Code session lines ("type": "user" or "assistant", with "message" and "sessionId")'
PATTERNS = ("*.jsonl",)

AGENT = "claude-code"
SYNTHETIC = "<synthetic>"
"""Model name of messages that Claude Code itself wrote (errors, interrupts)."""
REPLACED = ("compact_boundary", "microcompact_boundary")
REFUSALS = ("The user doesn't want to", "User rejected")
"""How a tool result starts when a person refused the call."""


def trajectories(context: Context) -> Iterator[Draft]:
    seen: set[int] = set()

    def parse(context: Context, file: LogFile) -> Iterator[Draft]:
        return _session(context, file, seen)

    yield from context.each_file(parse)


class _Chain:
    """One agent's lines: the session itself or one sub-agent."""

    def __init__(self, context: Context, seen: set[int]) -> None:
        self.builder = TurnBuilder(context.argument_text)
        self.model: str | None = None
        self.version: str | None = None
        self.session = ""
        self.modes: list[str] = []
        self.copied = False
        """It starts with a copy of another file's messages (a resumed session)."""
        self._seen, self._mine = seen, set[int]()
        self._reply: Reply | None = None
        self._message_id = ""

    def assistant(self, line: dict[str, Any], message: dict[str, Any]) -> None:
        if message.get("model") == SYNTHETIC or line.get("isApiErrorMessage"):
            return
        message_id = str(message.get("id") or line.get("requestId") or line.get("uuid"))
        if message_id != self._message_id:
            key = int.from_bytes(blake2b(message_id.encode(), digest_size=8).digest())
            if key in self._mine:
                return  # A late duplicate of a closed reply.
            self.builder.close()
            self._mine.add(key)
            self._message_id, self._reply = message_id, None
            if key in self._seen:
                self.copied = self.copied or not self.builder.turns
                self.builder.drop_pending()
                return
            self._seen.add(key)
            self._reply = self.builder.open(Reply())
            self.model = name(message.get("model")) or self.model
        if self._reply is not None:
            _add(self._reply, line, message)

    def user(self, line: dict[str, Any], message: dict[str, Any]) -> None:
        time = seconds(line.get("timestamp"))
        if mode := line.get("permissionMode"):
            self.permission(str(mode))
        if line.get("isCompactSummary"):
            self.builder.compact()
        prompted = False
        for block in _blocks(message.get("content")):
            if block.get("type") == "tool_result":
                self._result(line, block, time)
            else:
                prompted = prompted or not line.get("isMeta")
                self.builder.text(text_chars(block))
        if prompted:
            self.builder.prompt(0, time)

    def _result(self, line: dict[str, Any], block: dict[str, Any], time: float | None) -> None:
        extra = mapping(line.get("toolUseResult"))
        duration = seconds(extra.get("durationMs", extra.get("totalDurationMs")))
        content = block.get("content")
        self.builder.result(
            str(block.get("tool_use_id")),
            text_chars(content),
            time,
            None if duration is None else duration / 1000,
            human=bool(block.get("is_error")) and str(_first_text(content)).startswith(REFUSALS),
        )

    def permission(self, mode: str) -> None:
        self.builder.permission(mode)
        if mode not in self.modes:
            self.modes.append(mode)


def _add(reply: Reply, line: dict[str, Any], message: dict[str, Any]) -> None:
    """One more line of a reply. Each repeats the usage, the first ones with a stub for the output."""
    usage = mapping(message.get("usage"))
    cached = count(usage.get("cache_read_input_tokens"))
    parts = (count(usage.get("input_tokens")), cached, count(usage.get("cache_creation_input_tokens")))
    reply.prompt_tokens = max(reply.prompt_tokens or 0, sum(part or 0 for part in parts))
    reply.cached_tokens = cached if reply.cached_tokens is None else reply.cached_tokens
    time = seconds(line.get("timestamp"))
    reply.end = time if time is not None else reply.end
    for block in _blocks(message.get("content")):
        if block.get("type") == "tool_use":
            # The model writes the call's name and arguments, not its id.
            reply.output_chars += len(json.dumps({key: part for key, part in block.items() if key != "id"}))
            reply.calls[str(block.get("id"))] = Call(name(block.get("name")), block.get("input"))
        else:
            reply.output_chars += text_chars(block)
    # Often a stub to the end of the reply; the logged text is a lower bound.
    reported = count(usage.get("output_tokens")) or 0
    reply.output_tokens = max(reply.output_tokens or 0, reported, estimate(reply.output_chars))


def _session(context: Context, file: LogFile, seen: set[int]) -> Iterator[Draft]:
    chains: dict[str, _Chain] = {}
    roots: dict[str, str] = {}
    for _, line in context.lines(file, _known):
        message = line.get("message")
        agent = _agent(line, roots)
        if agent not in chains:
            chains[agent] = _Chain(context, seen)
        chain = chains[agent]
        if line.get("type") == "system" and line.get("subtype") in REPLACED:
            chain.builder.compact()
        elif line.get("type") == "permission-mode" and line.get("permissionMode"):
            chain.permission(str(line["permissionMode"]))
        elif isinstance(message, dict) and line.get("type") in ("user", "assistant"):
            chain.version = name(line.get("version")) or chain.version
            chain.session = str(line.get("sessionId") or chain.session)
            if line["type"] == "user":
                chain.user(line, message)
            else:
                chain.assistant(line, message)
    for agent, chain in chains.items():
        chain.builder.close()
        if chain.builder.turns:
            yield _draft(context, chain, agent)


def _known(line: dict[str, Any]) -> bool:
    return line.get("type") in ("user", "assistant") and "message" in line and "sessionId" in line


def _agent(line: dict[str, Any], roots: dict[str, str]) -> str:
    """Which agent a line belongs to: "" for the session itself."""
    if agent := line.get("agentId"):
        return str(agent)
    if not line.get("isSidechain"):
        return ""
    own = str(line.get("uuid"))
    root = roots.get(str(line.get("parentUuid")), own)
    roots[own] = root
    return root


def _draft(context: Context, chain: _Chain, agent: str) -> Draft:
    turns = chain.builder.turns
    names = (chain.session, agent) if agent else (chain.session,)
    item = Trajectory(
        trajectory_id=context.trajectory_id(*names),
        session_group=context.group_id(chain.session),
        source=context.source,
        agent=AGENT,
        agent_version=chain.version,
        model=chain.model,
        subagent=bool(agent),
        parent=context.reference(chain.session) if agent else None,
        start_s=chain.builder.start,
        permission_modes=chain.modes or None,
        turns=turns,
        n_turns=len(turns),
    )
    return Draft(item, None if chain.copied else turns[0].cached_tokens)


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return mappings(content)


def _first_text(content: object) -> object:
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return content[0].get("text")
    return content
