"""Which waiting request goes next: fewest new tokens first (CacheWise, arXiv 2606.16824, section 5.1), aged.

A request's *work* is what its prefill must still compute: prompt and output so far, less what is resident
(device or host), at least 1. Time is the count of prefill tokens that the server has processed, as SGLang's
hrrn means to count it (`Scheduler.processed_tokens_counter`, without what that counts again while decoding): the
same on every rank, and a server that stands still ages nobody.

A request that came at `arrival` with `work` is *due* once `arrival + patience * work` tokens are processed.
Due ones go first, in the order of their arrival; the others follow, soonest due first. So, with the priority
and the work of a request fixed:

**Bound.** While a request waits, later arrivals of its priority are served at most `patience * work` tokens,
and one batch, before it. Proof: whoever is served before it while it is not due adds to the count that makes
it due; the batch that carries the count past that point was chosen before. Once it is due, only due ones that
came earlier go before it.

Compared with fcfs, each request therefore waits for at most `patience` times its own work, and one batch,
longer. Patience 0 is fcfs; infinite patience is CacheWise's own order, fewest new tokens first with no bound.
Among requests that are not due a smaller one overtakes a larger one if it comes within `patience` times the
difference of their work: with 4, a continuation of 500 new tokens passes a cold prompt of 20,000 that came up
to 78,000 processed tokens before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

PREFIX_AWARE = "prefix-aware"
GREEDY = "prefix-aware-greedy"
POLICY_NAMES = (PREFIX_AWARE, GREEDY)
"""For `--schedule-policy`."""
DEFAULT_PATIENCE = 4.0

DUE, WAITS, DEFERRED = range(3)

T = TypeVar("T")


class Key(NamedTuple):
    """Sorts a queue: smaller goes first. No two of a queue are equal."""

    priority: int
    """SGLang's, with the sign that puts the more urgent first; 0 without priority scheduling."""
    group: int
    rank: float
    number: int
    """Of the arrival."""


def key(priority: int, arrival: int, work: int, number: int, patience: float) -> Key:
    """The key of a request that is not due: by when it will be, or by work if it never will."""
    return Key(priority, WAITS, work if math.isinf(patience) else arrival + patience * work, number)


class Order(Generic[T]):
    """A queue in the order of its keys, kept from pass to pass.

    Every operation touches a few items; none looks at each. That matters: reading one attribute of 2,000
    waiting requests costs about as much as the rest of a scheduling step.

    Attributes:
        items: the queue. Compared by identity.
        keys: theirs, ascending.
    """

    def __init__(self) -> None:
        self.items: list[T] = []
        self.keys: list[Key] = []

    def clear(self) -> None:
        self.items, self.keys = [], []

    def follow(self, queue: Sequence[T]) -> Sequence[T]:
        """Drop what has left ``queue``; returns the items that are new in it.

        What stayed is expected in the order in which it was left, with new items behind it. From the first item
        on that is elsewhere, everything counts as new.
        """
        kept, taken, position = 0, 0, 0
        in_bulk = True
        items, keys = self.items, self.keys
        while taken < len(items):
            rest = len(items) - taken
            if in_bulk and queue[position : position + rest] == items[taken:]:
                # The usual case after a few at the head have left; compares identities, in C.
                items[kept:taken], keys[kept:taken] = [], []
                return queue[position + rest :]
            if position < len(queue) and queue[position] is items[taken]:
                items[kept], keys[kept] = items[taken], keys[taken]
                kept, position, in_bulk = kept + 1, position + 1, False
            else:
                in_bulk = True
            taken += 1
        del items[kept:], keys[kept:]
        return queue[position:]

    def add(self, item: T, at: Key) -> None:
        position = bisect_left(self.keys, at)
        self.keys.insert(position, at)
        self.items.insert(position, item)

    def take(self, position: int) -> T:
        """Remove an item and return it."""
        del self.keys[position]
        return self.items.pop(position)

    def find(self, item: T, at: Key) -> int | None:
        """The position of an item with this key, if it is still there."""
        position = bisect_left(self.keys, at)
        found = position < len(self.items) and self.items[position] is item
        return position if found else None

    def mark_due(self, now: int) -> list[tuple[T, Key]]:
        """Put those whose time has come behind the due ones, by arrival; returns them with their new keys.

        Only for finite patience.
        """
        due = []
        start = 0
        while start < len(self.keys):
            priority = self.keys[start].priority
            waiting = bisect_left(self.keys, (priority, WAITS), lo=start)
            while waiting < len(self.keys):
                first = self.keys[waiting]
                if first[:2] != (priority, WAITS) or first.rank > now:
                    break
                at = Key(priority, DUE, first.number, first.number)
                item = self.take(waiting)
                self.add(item, at)
                due.append((item, at))
                waiting += 1
            start = bisect_left(self.keys, (priority + 1,), lo=waiting)
        return due
