"""Which waiting request goes next: fewest new tokens first (CacheWise, arXiv 2606.16824, section 5.1), aged.

A request's *work* is what its prefill must still compute: prompt and output so far, less what is resident
(device or host), at least 1. Time is counted in prefill tokens that the server has processed, as SGLang's hrrn
does (`Req.arrival_processed_tokens`, `Scheduler.processed_tokens_counter`): the same on every rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

PREFIX_AWARE = "prefix-aware"
GREEDY = "prefix-aware-greedy"
POLICY_NAMES = (PREFIX_AWARE, GREEDY)
"""For `--schedule-policy`."""
DEFAULT_PATIENCE = 4.0


class Key(NamedTuple):
    """Sorts a queue: smaller goes first."""

    priority: int
    """SGLang's priority, with the sign that puts the more urgent first; 0 without priority scheduling."""
    waits: bool
    """False once the request is due."""
    rank: float
    number: int
    """Counts arrivals."""


def due_at(arrival: int, work: int, patience: float) -> float:
    """The processed tokens at which a request that came at ``arrival`` has been overtaken enough."""
    return arrival + patience * work


def key(priority: int, arrival: int, work: int, number: int, patience: float, now: int) -> Key:
    if math.isinf(patience):
        return Key(priority, True, work, number)
    due = due_at(arrival, work, patience)
    import os

    mode = os.environ.get("ORDER_MODE", "strict")
    if mode == "edf":
        return Key(priority, True, due, number)
    if due <= now:
        return Key(priority, False, 0.0, number)
    return Key(priority, True, due if mode == "strict" else work, number)
