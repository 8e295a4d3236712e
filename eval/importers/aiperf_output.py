"""Writes trajectories as AIPerf ``mooncake_trace`` lines (one session a trajectory, one row a turn).

A trajectory that only grows becomes rows with their new input; AIPerf adds the conversation so far. One that
ever keeps less than its whole context becomes rows with whole prompts (``context_mode``), where equal
``hash_ids`` say what is kept. The first rows' ids make shared prefixes equal across sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import Any

from eval.importers.aiperf import WHOLE
from eval.trace import Trajectory, Turn


def rows(trajectories: Iterable[Trajectory], block_tokens: int) -> Iterator[dict[str, Any]]:
    """AIPerf rows. Tool names and arguments have no place in them; an unknown gap leaves ``delay`` out."""
    ids = count()
    shared: dict[str, list[int]] = {}
    for item in trajectories:
        prefix: list[int] = []
        if item.shared_prefix_id is not None:
            prefix = shared.setdefault(item.shared_prefix_id, [])
            wanted = item.shared_prefix_tokens // block_tokens
            prefix.extend(next(ids) for _ in range(wanted - len(prefix)))
            prefix = prefix[:wanted]
        grows = _grows(item.turns)
        blocks: list[int] = prefix
        for index, turn in enumerate(item.turns):
            if index:
                # A reply is generated anew in a replay: only the prompt before can be the same.
                kept = min(turn.kept_tokens, item.turns[index - 1].prompt_tokens)
                blocks = [] if grows else blocks[: kept // block_tokens]
            length = turn.new_input_tokens if grows and index else turn.prompt_tokens
            needed = -(-length // block_tokens)
            # The block that a prompt ends in is never the same as another's, unless it is full.
            blocks = blocks[: min(needed, length // block_tokens)]
            blocks = blocks + [next(ids) for _ in range(needed - len(blocks))]
            yield _row(item, turn, index, length, blocks, grows)


def _grows(turns: list[Turn]) -> bool:
    """Whether every turn keeps all of the context before."""
    pairs = pairwise(turns)
    return all(
        not turn.reset and turn.kept_tokens == before.prompt_tokens + before.output_tokens
        for before, turn in pairs
    )


def _row(
    item: Trajectory, turn: Turn, index: int, length: int, blocks: list[int], grows: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"session_id": item.trajectory_id}
    if index and turn.gap_s is not None:
        row["delay"] = round(turn.gap_s * 1000, 3)
    if not grows:
        row["context_mode"] = WHOLE
    # AIPerf takes no output length of 0.
    return row | {"input_length": length, "output_length": max(1, turn.output_tokens), "hash_ids": blocks}
