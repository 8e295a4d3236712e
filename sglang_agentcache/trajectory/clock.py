"""The clock that orders evictions.

Ranks of one server must agree on every order, and their wall clocks do not (SGLang #22759, #27221). With
several ranks the leader puts a `Tick` into the request stream that SGLang broadcasts anyway, and every rank
reads the time from there. A single rank reads its own monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_INTERVAL_S = 0.1
"""The leader sends at most one tick in this time: far below any tool's duration worth predicting."""


@dataclass(frozen=True)
class Tick:
    """The leader's time, in the broadcast request stream."""

    seconds: float


class Clock:
    """Seconds since an arbitrary origin, equal on all ranks at the same point of the request stream.

    Args:
        shared: True if several ranks must agree; then time moves only through `advance`.
        source: where the leader (or a single rank) reads the time, in seconds.
    """

    def __init__(self, shared: bool = False, source: Callable[[], float] = time.monotonic) -> None:
        self.shared = shared
        self._source = source
        self._now = 0.0
        self._sent: float | None = None

    def now(self) -> float:
        """The current time in seconds; never goes back."""
        if not self.shared:
            self._now = max(self._now, self._source())
        return self._now

    def tick(self) -> Tick | None:
        """On the leader: the tick to send now, or None if the last one is recent enough."""
        if not self.shared:
            return None
        seconds = self._source()
        if self._sent is not None and 0 <= seconds - self._sent < TICK_INTERVAL_S:
            return None
        self._sent = seconds
        return Tick(seconds)

    def advance(self, tick: Tick) -> None:
        """On every rank: take the leader's time over."""
        self._now = max(self._now, tick.seconds)
