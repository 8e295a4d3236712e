"""Names of schedule policies: SGLang's, and this package's with its patience after a colon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_agentcache.scheduling.order import DEFAULT_PATIENCE, GREEDY, PREFIX_AWARE

OPTION = "patience"
UPSTREAM = ("fcfs", "lpm", "hrrn", "shortest-prefill-first", "lof")
SCHEDULES = (*UPSTREAM, PREFIX_AWARE, GREEDY)


@dataclass(frozen=True)
class Schedule:
    """A parsed name. ``patience`` is None for SGLang's policies."""

    name: str
    patience: float | None

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Raises ValueError naming what is allowed."""
        name, _, option = text.partition(":")
        if name not in SCHEDULES or (option and name != PREFIX_AWARE):
            raise ValueError(
                f"allowed are {', '.join(SCHEDULES)}, {PREFIX_AWARE}:{OPTION}=NUMBER; got {text!r}"
            )
        if name in UPSTREAM:
            return cls(name, None)
        if name == GREEDY:
            return cls(name, math.inf)
        key, _, value = option.partition("=")
        if not option:
            return cls(name, DEFAULT_PATIENCE)
        try:
            patience = float(value)
        except ValueError:
            patience = math.nan
        if key != OPTION or not patience >= 0:
            raise ValueError(f"{PREFIX_AWARE}:{OPTION}=NUMBER takes a number of at least 0; got {text!r}")
        return cls(name, patience)
