"""OpenHands events: version 0 (``action`` / ``observation``) and the agent SDK's (``kind``).

Files: a JSON array of events, a document with ``trajectory`` / ``history`` / ``events``, JSON lines with
``history`` (evaluation outputs), or a folder ``events/`` with one event a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eval.importers.context import Context, stem
from eval.importers.finish import Draft
from eval.importers.openhands_events import Conversation, is_event
from eval.importers.reading import LogFile, WrongFormat
from eval.trace import Trajectory

EXPECTED = 'OpenHands events ({"id": ..., "source": ..., "action" / "observation" / "kind": ...})'
PATTERNS = ("*.json", "*.jsonl")

AGENT = "openhands"
LISTS = ("item", "history.item", "trajectory.item", "events.item")
EVENTS_FOLDER = "events"
STATE_FILE = "base_state.json"
"""Beside ``events/`` in the agent SDK's conversations; it has the token counts ..."""
STATE_PARTS = ("stats", "agent")
"""... in these parts."""


def trajectories(context: Context) -> Iterator[Draft]:
    folders: dict[Path, list[LogFile]] = {}
    for file in context.files:
        if file.path.parent.name == EVENTS_FOLDER:
            folders.setdefault(file.path.parent, []).append(file)

    def parse(context: Context, file: LogFile) -> Iterator[Draft]:
        if file.path.parent.name == EVENTS_FOLDER:
            return _folder(context, folders.pop(file.path.parent, []))
        if file.path.name == STATE_FILE:
            return iter(())
        return _lines(context, file) if ".jsonl" in file.path.name else _document(context, file)

    yield from context.each_file(parse)


def _folder(context: Context, files: list[LogFile]) -> Iterator[Draft]:
    """One event a file; ``0.json``, ``1.json``, ... or ``event-00000-<id>.json``."""
    if not files:
        return  # Read with the first file of the folder.
    conversation = Conversation(context)
    folder = files[0].path.parent.parent
    state = folder / STATE_FILE
    if state.is_file():
        for _, part in context.parts(LogFile(state, named=False), *STATE_PARTS):
            conversation.statistics(part)
    for file in sorted(files, key=lambda file: (len(file.path.name.split("-")[0]), file.path.name)):
        for _, event in context.parts(file, ""):
            conversation.event(event)
    yield from _draft(context, folder.name, conversation)


def _document(context: Context, file: LogFile) -> Iterator[Draft]:
    conversation = Conversation(context)
    for _, event in context.parts(file, *LISTS, required=LISTS):
        conversation.event(event)
    if not conversation.events:
        raise WrongFormat(file.path, context.expected, "none of its parts is an event")
    yield from _draft(context, stem(file.path), conversation)


def _lines(context: Context, file: LogFile) -> Iterator[Draft]:
    """One run a line with its ``history``, or one event a line."""
    single = Conversation(context)
    for number, line in context.lines(file, lambda line: "history" in line or is_event(line)):
        if is_event(line):
            single.event(line)
        elif isinstance(line.get("history"), list):
            conversation = Conversation(context)
            for event in line["history"]:
                conversation.event(event)
            yield from _draft(context, str(line.get("instance_id") or number), conversation)
    yield from _draft(context, stem(file.path), single)


def _draft(context: Context, name: str, conversation: Conversation) -> Iterator[Draft]:
    conversation.builder.close()
    turns = conversation.builder.turns
    if not turns:
        return
    prefix = conversation.builder.system_tokens if turns[0].cached_tokens is None else 0
    item = Trajectory(
        trajectory_id=context.trajectory_id(name),
        session_group=context.group_id(name),
        source=context.source,
        agent=AGENT,
        agent_version=conversation.version,
        model=conversation.model,
        shared_prefix_id=f"oh_{conversation.system.hexdigest()[:12]}" if prefix else None,
        shared_prefix_tokens=prefix,
        shared_prefix_est="system message and tools chars/4" if prefix else None,
        start_s=conversation.builder.start,
        turns=turns,
        n_turns=len(turns),
    )
    yield Draft(item, turns[0].cached_tokens)
