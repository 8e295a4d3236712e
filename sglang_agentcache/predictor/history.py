"""A session's own recent waits: the best single hint about its next one.

The same tool is slow in one session and quick in another (a person who approves every edit, a cold build
cache, a slow disk). A live server sees every wait of every trajectory end, so it knows this without being
told.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from sglang_agentcache.predictor.features import CallFeatures
from sglang_agentcache.predictor.tool_calls import PERSON

#: Waits remembered per session.
MAX_WAITS = 48
_FAST, _SLOW = 0.6, 0.9  # decay per wait of the two averages
_LATE = 0.7  # log10 seconds over what was foreseen (five times longer): a person or a lock held it up

#: Names of the entries of `SessionHistory.features`.
HISTORY = (
    "waits",
    "last",
    "fast",
    "slow",
    "surprise_last",
    "surprise_fast",
    "surprise_slow",
    "held_up",
    "tool_waits",
    "tool_last",
    "tool_mean",
    "tool_surprise",
    "program_waits",
    "program_last",
    "program_mean",
    "program_surprise",
    "same_waits",
    "same_last",
    "same_mean",
    "person_last",
    "since_person",
)


class _Past(NamedTuple):
    tool: str
    program: str
    signature: str
    log_duration: float
    surprise: float


class SessionHistory:
    """The last `MAX_WAITS` waits of one session (mutable; one per trajectory, a few KiB at most)."""

    __slots__ = ("_person_last", "_since_person", "_waits")

    def __init__(self) -> None:
        self._waits: deque[_Past] = deque(maxlen=MAX_WAITS)
        self._person_last = math.nan
        self._since_person = math.nan

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, call: CallFeatures, log_duration: float, expected: float) -> None:
        """Remember that ``call`` took ``log_duration`` where ``expected`` was foreseen without a history."""
        if call.tool == PERSON:
            self._person_last, self._since_person = log_duration, 0.0
            return
        self._since_person += 1.0
        surprise = log_duration - expected
        self._waits.append(_Past(call.tool, call.program, call.signature, log_duration, surprise))

    def features(self, call: CallFeatures) -> np.ndarray:
        """Return float64 [len(HISTORY)]; NaN where the session has no such wait yet."""
        tool, program, same = _Mean(), _Mean(), _Mean()
        fast = fast_surprise = slow = slow_surprise = late = 0.0
        fast_weight = slow_weight = 1.0
        fast_total = slow_total = 0.0
        for past in reversed(self._waits):
            value, surprise = past.log_duration, past.surprise
            fast += fast_weight * value
            fast_surprise += fast_weight * surprise
            slow += slow_weight * value
            slow_surprise += slow_weight * surprise
            late += slow_weight * (surprise > _LATE)
            fast_total += fast_weight
            slow_total += slow_weight
            fast_weight *= _FAST
            slow_weight *= _SLOW
            if past.tool == call.tool:
                tool.add(past)
                if past.program == call.program:
                    program.add(past)
                    if past.signature == call.signature:
                        same.add(past)
        count = len(self._waits)
        if count:
            newest = self._waits[-1]
            recent = [
                newest.log_duration,
                fast / fast_total,
                slow / slow_total,
                newest.surprise,
                fast_surprise / fast_total,
                slow_surprise / slow_total,
                late / slow_total,
            ]
        else:
            recent = [math.nan] * 7
        return np.array(
            [
                count,
                *recent,
                *tool.summary(),
                *program.summary(),
                *same.summary()[:3],
                self._person_last,
                self._since_person,
            ],
            dtype=np.float64,
        )


class _Mean:
    """Means over the waits it is shown, newest first, each older one weighing less."""

    __slots__ = ("_sum", "_surprise", "_total", "_weight", "count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = math.nan
        self._weight = 1.0
        self._sum = self._surprise = self._total = 0.0

    def add(self, past: _Past) -> None:
        if not self.count:
            self.last = past.log_duration
        self.count += 1
        self._sum += self._weight * past.log_duration
        self._surprise += self._weight * past.surprise
        self._total += self._weight
        self._weight *= _SLOW

    def summary(self) -> tuple[float, float, float, float]:
        if not self.count:
            return 0.0, math.nan, math.nan, math.nan
        return float(self.count), self.last, self._sum / self._total, self._surprise / self._total
