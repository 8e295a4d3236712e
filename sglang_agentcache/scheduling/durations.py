"""How often each tool was called and how long its waits took, for people who look at a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sglang_agentcache.predictor.tool_calls import MAX_NAME_CHARS, PERSON, ToolCall

MAX_TOOLS = 1_024
SHOWN = 20
_SHORTEST_S = 0.01


class ToolDurations:
    """Counts and durations per tool since the server started; beyond `MAX_TOOLS` the one unseen for longest goes."""

    def __init__(self) -> None:
        self._tools: dict[str, tuple[int, float, float]] = {}  # count, sum, sum of logs; oldest first

    def add(self, calls: Sequence[ToolCall], duration_s: float) -> None:
        """Each of the parallel ``calls`` of one wait counts with its whole duration; none is a person."""
        log_s = math.log(max(duration_s, _SHORTEST_S))
        for name in {call.name[:MAX_NAME_CHARS]: None for call in calls} or (PERSON,):
            count, total, logs = self._tools.pop(name, (0, 0.0, 0.0))
            self._tools[name] = (count + 1, total + duration_s, logs + log_s)
        while len(self._tools) > MAX_TOOLS:
            del self._tools[next(iter(self._tools))]

    def most_frequent(self) -> dict[str, dict[str, Any]]:
        """The `SHOWN` most frequent tools: `count`, and in seconds the `mean_s` and the geometric `typical_s`."""
        ranked = sorted(self._tools.items(), key=lambda item: (-item[1][0], item[0]))[:SHOWN]
        return {
            name: {
                "count": count,
                "mean_s": round(total / count, 3),
                "typical_s": round(math.exp(logs / count), 3),
            }
            for name, (count, total, logs) in ranked
        }
