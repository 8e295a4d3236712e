"""Requests of many interleaved sessions in little memory: a column per field, grouped at the end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from eval.trace import Turn

UNKNOWN = -1.0
ESTIMATED, RESET = 1, 2


class Requests:
    """Append requests as they come; `sessions` gives every session's turns in order. About 50 bytes each."""

    def __init__(self) -> None:
        self._session, self._prompt = array("q"), array("q")
        self._kept, self._output = array("q"), array("q")
        self._gap, self._arrival, self._flags = array("d"), array("d"), array("b")

    def __len__(self) -> int:
        return len(self._session)

    def append(
        self,
        session: int,
        prompt: int,
        kept: int,
        output: int,
        gap_s: float | None = None,
        arrival_s: float | None = None,
        flags: int = 0,
    ) -> None:
        """Tokens and seconds; ``flags``: `ESTIMATED` and `RESET`, or'ed."""
        self._session.append(session)
        self._prompt.append(prompt)
        self._kept.append(kept)
        self._output.append(output)
        self._gap.append(UNKNOWN if gap_s is None else gap_s)
        self._arrival.append(UNKNOWN if arrival_s is None else arrival_s)
        self._flags.append(flags)

    def sessions(self, kind: str) -> Iterator[tuple[int, float | None, list[Turn]]]:
        """``(session, first arrival, turns)`` by ascending session; ``kind`` is what the log cannot tell."""
        order = np.argsort(np.array(self._session, dtype=np.int64), kind="stable")
        turns: list[Turn] = []
        current, first, before = -1, UNKNOWN, UNKNOWN
        for index in map(int, order):
            if self._session[index] != current:
                if turns:
                    yield current, _known(first), turns
                turns, current = [], self._session[index]
                first, before = self._arrival[index], UNKNOWN
            arrival = self._arrival[index]
            turns.append(self._turn(index, kind if turns else "user", first, before))
            before = arrival
        if turns:
            yield current, _known(first), turns

    def _turn(self, index: int, kind: str, first: float, before: float) -> Turn:
        arrival, prompt = self._arrival[index], self._prompt[index]
        return Turn(
            kind=kind,
            prompt_tokens=prompt,
            new_input_tokens=prompt - self._kept[index],
            output_tokens=self._output[index],
            gap_s=_known(self._gap[index]),
            t_s=None if UNKNOWN in (first, arrival) else round(max(0.0, arrival - first), 3),
            interval_s=None if UNKNOWN in (before, arrival) else round(max(0.0, arrival - before), 3),
            reset=bool(self._flags[index] & RESET),
            prompt_est=bool(self._flags[index] & ESTIMATED),
        )


def _known(value: float) -> float | None:
    return None if value == UNKNOWN else value
