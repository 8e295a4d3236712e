"""Token ids of simulated requests, made on demand.

What matters to a radix cache is which prefixes are equal. So ids here are not drawn from a vocabulary: every
fresh token gets a number of its own, equal only where the trace says that tokens are shared or kept.
"""

from __future__ import annotations

from array import array

import numpy as np

from eval.trace import Trajectory, Turn

_BLOCK = 1 << 32
"""Ids of one shared prefix; no prefix is longer."""


def _range(first: int, count: int) -> array[int]:
    ids = array("q")
    ids.frombytes(np.arange(first, first + count, dtype=np.int64).tobytes())
    return ids


class Ids:
    """Hands out ids: a block per shared prefix, and a running number for everything else."""

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        self._next = 1 << 62

    def shared(self, prefix: str | None, count: int) -> array[int]:
        """The first ``count`` ids of a shared prefix; empty without one."""
        if prefix is None:
            return array("q")
        return _range(self._prefixes.setdefault(prefix, len(self._prefixes)) * _BLOCK, count)

    def fresh(self, count: int) -> array[int]:
        """Ids that nobody has had before."""
        self._next += count
        return _range(self._next - count, count)


class Context:
    """One trajectory's tokens, extended turn by turn by the replay rule (`eval.tokens.History`)."""

    def __init__(self, ids: Ids, trajectory: Trajectory) -> None:
        self._ids = ids
        self._shared = ids.shared(trajectory.shared_prefix_id, trajectory.shared_prefix_tokens)
        self._first = True
        self._tokens = array("q")

    def prompt(self, turn: Turn) -> tuple[array[int], int]:
        """The next prompt, and how many of its tokens belong to the context before (0 on the first turn)."""
        if self._first:
            base, kept = self._shared[: turn.prompt_tokens], 0
        else:
            kept = min(turn.kept_tokens, len(self._shared)) if turn.reset else turn.kept_tokens
            base = self._tokens[:kept]
        self._first = False
        return base + self._ids.fresh(turn.prompt_tokens - len(base)), kept

    def answered(self, prompt: array[int], output: array[int]) -> None:
        """The model's answer to the last prompt is part of the context now."""
        self._tokens = prompt + output
