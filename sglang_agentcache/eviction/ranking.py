"""Numbers of which the smallest is asked for, again and again, while many of them change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FIRST_SIZE = 64


class Ranking:
    """A finite score per serial; the smallest score is first, ties go to the smaller serial.

    An array that is scanned, not a heap: to change many scores is one assignment, nothing stale is left behind,
    and a scan of 10,000 takes a few microseconds.
    """

    def __init__(self) -> None:
        self._scores = np.full(_FIRST_SIZE, np.inf)
        self._serials = np.zeros(_FIRST_SIZE, dtype=np.int64)
        self._slots: dict[int, int] = {}
        self._free = list(range(_FIRST_SIZE))

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, serials: Sequence[int], scores: np.ndarray) -> None:
        """Set the scores, float64 [n], of n serials, new or known."""
        known = self._slots
        slots = [known[serial] if serial in known else self._take(serial) for serial in serials]
        self._scores[slots] = scores

    def drop(self, serial: int) -> None:
        """Forget a serial; unknown ones are ignored."""
        slot = self._slots.pop(serial, None)
        if slot is not None:
            self._scores[slot] = np.inf
            self._free.append(slot)

    def first(self) -> int | None:
        """The serial with the smallest score, or None of none."""
        if not self._slots:
            return None
        least = self._scores.min()
        return int(self._serials[self._scores == least].min())

    def _take(self, serial: int) -> int:
        """A free slot."""
        if not self._free:
            self._grow()
        slot = self._slots[serial] = self._free.pop()
        self._serials[slot] = serial
        return slot

    def _grow(self) -> None:
        size = len(self._scores)
        self._scores = np.concatenate([self._scores, np.full(size, np.inf)])
        self._serials = np.concatenate([self._serials, np.zeros(size, dtype=np.int64)])
        self._free = list(range(size, 2 * size))
