"""Second pass over imported trajectories: what depends on all of them (shared prefixes, the first start)."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from eval.trace import Trajectory, check, replace, replace_turn


class Draft(NamedTuple):
    """An imported trajectory; its ``start_s`` is in seconds since the epoch where the log has dates.

    ``first_cached`` is the cache hit of its first request where the provider reported one and the
    trajectory really starts there: what it shares with others.
    """

    trajectory: Trajectory
    first_cached: int | None = None


def finished(drafts: Iterable[Draft], folder: Path) -> Iterator[Trajectory]:
    """Complete trajectories, in the order they came. Reads all drafts before it yields the first.

    They wait in a temporary file in ``folder``, so memory does not grow with their turns. An interrupt
    (Ctrl-C) while reading is kept until what was read by then has been yielded, then raised again.
    """
    cached: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    first_start: float | None = None
    interrupt: KeyboardInterrupt | None = None
    with tempfile.TemporaryFile(dir=folder) as spool:
        try:
            for draft in drafts:
                item = draft.trajectory
                check(item)
                if draft.first_cached is not None:
                    cached[_group(item)].append(draft.first_cached)
                if item.start_s is not None:
                    first_start = item.start_s if first_start is None else min(first_start, item.start_s)
                spool.write(msgspec.json.encode(item) + b"\n")
        except KeyboardInterrupt as error:
            interrupt = error
        medians = {group: int(statistics.median(values)) for group, values in cached.items()}
        for item in _spooled(spool):
            if item.start_s is not None and first_start is not None:
                item = replace(item, start_s=round(item.start_s - first_start, 3))
            yield _with_prefix(item, medians.get(_group(item), 0))
    if interrupt is not None:
        raise interrupt


def _spooled(spool: IO[bytes]) -> Iterator[Trajectory]:
    spool.seek(0)
    decode = msgspec.json.Decoder(Trajectory).decode
    for line in spool:
        yield decode(line)


def _group(item: Trajectory) -> tuple[str | None, ...]:
    """Requests of these start with the same system prompt and tools."""
    kind = "sub" if item.subagent else "main"
    return item.source, item.agent, item.agent_version, item.model, kind


def _with_prefix(item: Trajectory, median: int) -> Trajectory:
    if item.shared_prefix_id is None and median:
        name = sha256("/".join(str(part) for part in _group(item)).encode()).hexdigest()[:12]
        item = replace(
            item,
            shared_prefix_id=f"sp_{name}",
            shared_prefix_tokens=median,
            shared_prefix_est="median_first_cached_tokens",
        )
    if item.shared_prefix_tokens > item.turns[0].prompt_tokens:
        item = replace(item, shared_prefix_tokens=item.turns[0].prompt_tokens)
    turns = list(item.turns)
    for index, turn in enumerate(turns):
        if turn.reset and index:
            before = turns[index - 1]
            context = before.prompt_tokens + before.output_tokens
            kept = min(item.shared_prefix_tokens, turn.prompt_tokens - 1, context)
            turns[index] = replace_turn(turn, new_input_tokens=turn.prompt_tokens - kept)
    return replace(item, turns=turns)
