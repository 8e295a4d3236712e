"""How likely a trajectory that is idle comes back, learned from those that did and those that did not.

Clients that never say that a trajectory is over leave many behind that look like those waiting for a tool. The longer
one has been idle, the more likely it is one of them. No SGLang import.
"""

from __future__ import annotations

AWAY_S = 60
"""A trajectory idle for longer waits for a person or for a very long tool, or is over: it holds no place."""
FADING = 0.02
"""Weight that what was seen loses each time `fade` is called."""


class Returns:
    """Counts, by idle time in whole seconds; who comes back later than `AWAY_S` counts as one who stays away."""

    def __init__(self) -> None:
        self._came = [0.0] * AWAY_S
        self._stayed = 0.0
        self._likely = [1.0] * AWAY_S

    def came(self, idle_s: float) -> None:
        """One came back after so long, which is less than `AWAY_S`."""
        self._came[int(idle_s)] += 1

    def stayed(self) -> None:
        """One has been idle for `AWAY_S`."""
        self._stayed += 1

    def fade(self) -> None:
        """Forget a little, and work out what `likely` says from now on."""
        came = 1.0  # Before anything is seen all come back.
        for second in reversed(range(AWAY_S)):
            self._came[second] *= 1 - FADING
            came += self._came[second]
            self._likely[second] = came / (came + self._stayed)
        self._stayed *= 1 - FADING

    def likely(self, idle_s: float) -> float:
        """The share of those idle for so long that come back before `AWAY_S`."""
        return self._likely[int(idle_s)] if 0 <= idle_s < AWAY_S else 0.0
