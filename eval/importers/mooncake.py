"""Mooncake request traces: JSON lines with ``timestamp``, ``input_length``, ``output_length``, ``hash_ids``.

A hash id stands for one block of the prompt together with all that precedes it, so a request continues a
conversation when it has all full blocks of that conversation's last prompt. Conversations that begin alike
share a prefix. The log has arrivals only: gaps are unknown, ``interval_s`` is arrival to arrival.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from eval.importers.columns import Requests
from eval.importers.context import Context, count, seconds
from eval.importers.finish import Draft
from eval.trace import Trajectory

EXPECTED = 'Mooncake lines ({"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]})'
PATTERNS = ("*.jsonl",)

NO_BLOCK = -1


class Conversations:
    """Finds the conversation of a prompt by its block ids. Memory: one entry a conversation."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.count = 0
        self._ends: dict[int, int] = {}
        """Id of the last full block of a conversation's latest prompt, and the conversation."""
        self._context = array("q")
        """Prompt + output tokens of every conversation."""
        self._starts: dict[int, list[int]] = {}
        """By first block: the blocks that all conversations starting with it share ..."""
        self._members: dict[int, int] = {}
        """... and how many those are."""
        self._first = array("q")
        """First block of every conversation; `NO_BLOCK` for one without a full block."""

    def place(self, blocks: list[int], prompt: int, output: int) -> tuple[int, int]:
        """``(conversation, kept tokens)`` of a request."""
        full = blocks[: prompt // self.block_tokens]
        for length in range(len(full), 0, -1):
            conversation = self._ends.pop(full[length - 1], None)
            if conversation is not None:
                kept = min(length * self.block_tokens, self._context[conversation], prompt - 1)
                break
        else:
            conversation, kept = self._new(full), 0
        if full:
            self._ends[full[-1]] = conversation
        self._context[conversation] = prompt + output
        return conversation, kept

    def _new(self, full: list[int]) -> int:
        first = full[0] if full else NO_BLOCK
        self._first.append(first)
        self._context.append(0)
        self.count += 1
        if first != NO_BLOCK:
            self._members[first] = self._members.get(first, 0) + 1
            shared = self._starts.setdefault(first, list(full))
            same = next((i for i, (a, b) in enumerate(zip(shared, full, strict=False)) if a != b), None)
            del shared[min(len(shared), len(full)) if same is None else same :]
        return self.count - 1

    def shared(self, conversation: int) -> tuple[int, int] | None:
        """``(first block, tokens)`` that it shares with others; None if it starts as no other."""
        first = self._first[conversation]
        if first == NO_BLOCK or self._members[first] < 2:
            return None
        return first, len(self._starts[first]) * self.block_tokens


def trajectories(context: Context) -> Iterator[Draft]:
    requests, conversations = Requests(), Conversations(context.block_tokens)
    for file in context.files:
        for number, line in context.lines(file, known):
            blocks, prompt = _ids(line.get("hash_ids")), count(line.get("input_length"))
            if not prompt or blocks is None:
                context.damage.record(
                    file.path, number, "needs input_length of at least 1, hash_ids of 0 to 2^63-1"
                )
                continue
            output = count(line.get("output_length")) or 0
            arrival = seconds(line.get("timestamp"))
            conversation, kept = conversations.place(blocks, prompt, output)
            arrival_s = None if arrival is None else arrival / 1000
            requests.append(conversation, prompt, kept, output, arrival_s=arrival_s)
    for conversation, start, turns in requests.sessions("user"):
        shared = conversations.shared(conversation)
        name = f"mooncake-{conversation}"
        item = Trajectory(
            trajectory_id=context.reference(name),
            session_group=context.group_id(name),
            source=context.source,
            shared_prefix_id=f"mc_{shared[0]}" if shared else None,
            shared_prefix_tokens=shared[1] if shared else 0,
            shared_prefix_est="common leading blocks" if shared else None,
            start_s=start,
            turns=turns,
            n_turns=len(turns),
        )
        yield Draft(item)


def known(line: dict[str, Any]) -> bool:
    """Whether a line has the format's fields."""
    return "input_length" in line and "hash_ids" in line


def _ids(value: object) -> list[int] | None:
    return (
        value
        if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
        else None
    )
