"""Token ids for a text-free trace: the same trajectory always gets the same ids, on every machine.

A trace says how many tokens a prompt has and how many of them it keeps, not which. Ids are drawn from
SHAKE-256 keyed by what the tokens belong to, so shared prefixes are identical wherever their id appears
and private tokens differ between trajectories, turns and seeds (equal by chance only).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from eval.trace import Turn


class TokenSource:
    """Draws token ids in ``[first_id, first_id + vocab_size)``.

    Raises ValueError if the range is empty. Keep special tokens (end of sequence, ...) out of the range.
    """

    def __init__(self, seed: int, vocab_size: int = 256, first_id: int = 0) -> None:
        if vocab_size < 2:
            raise ValueError(f"vocab_size: at least 2, got {vocab_size}")
        if first_id < 0:
            raise ValueError(f"first_id: at least 0, got {first_id}")
        self.seed, self.vocab_size, self.first_id = seed, vocab_size, first_id

    def draw(self, count: int, *owner: str | int) -> list[int]:
        """The first ``count`` ids that belong to ``owner``; a longer draw starts with a shorter one."""
        key = "\x1f".join(map(str, (self.seed, *owner)))
        words = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * count), dtype="<u4")
        return (words % self.vocab_size + self.first_id).tolist()


class History:
    """One trajectory's tokens as the replay rule of the trace format builds them.

    Turn 0 is the shared prefix followed by private tokens. A later prompt is the kept part of the previous
    context (prompt + the tokens the model really generated) followed by fresh private ones; where the
    trace says ``reset`` it keeps the shared prefix only.
    """

    def __init__(
        self, source: TokenSource, trajectory_id: str, shared_prefix_id: str | None, shared_prefix_tokens: int
    ) -> None:
        self._source = source
        self._id = trajectory_id
        self._shared = (
            source.draw(shared_prefix_tokens, "shared", shared_prefix_id)
            if shared_prefix_id is not None
            else []
        )
        self._turn = 0
        self.context: list[int] = []
        """The tokens the server has seen and produced so far."""
        self.kept_tokens = 0
        """How many tokens of the context before the latest prompt were its history (0 for turn 0)."""

    def prompt(self, turn: Turn) -> list[int]:
        """The next prompt, ``turn.prompt_tokens`` ids. Call `extend` with the output before the next one."""
        if self._turn == 0:
            base = self._shared[: turn.prompt_tokens]
        elif turn.reset:
            base = self.context[: min(turn.kept_tokens, len(self._shared))]
        else:
            base = self.context[: turn.kept_tokens]
        self.kept_tokens = len(base) if self._turn else 0
        fresh = self._source.draw(turn.prompt_tokens - len(base), "private", self._id, self._turn)
        self.context = base + fresh
        self._turn += 1
        return self.context

    def extend(self, output: Sequence[int]) -> None:
        """Append what the model generated."""
        self.context = self.context + list(output)
