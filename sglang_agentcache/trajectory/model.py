"""What the table holds: trajectories, and the branches of their resident histories."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import Any, NamedTuple

from .identity import TrajectoryKey

NodeId = int

ANONYMOUS = "\0"
"""Begins the ids of trajectories that no client named; a client's ids are printable."""
PROBE_TOKENS = 16
"""Tokens compared before a request without an id is taken as the continuation of a trajectory."""


class State(Enum):
    ACTIVE = "active"
    IDLE = "idle"
    COMPLETED = "completed"


class PathNode(NamedTuple):
    """One node of a root-to-tail path; `end` is its offset from the root in tokens."""

    node: NodeId
    end: int


class Branch:
    """One line of a trajectory's history. Most have one; parallel requests under one id have several."""

    __slots__ = (
        "history_tokens",
        "probe",
        "prompt_end",
        "prompt_node",
        "prompt_tokens",
        "resident_tokens",
        "tail",
        "tokens",
        "touched",
        "trajectory",
        "trimmed",
    )

    def __init__(self, trajectory: Trajectory, touched: int) -> None:
        self.trajectory = trajectory
        self.touched = touched
        self.trimmed = False
        self.tail: NodeId | None = None
        self.resident_tokens = 0
        self.history_tokens = 0
        self.prompt_node: NodeId | None = None
        self.prompt_end = 0
        self.prompt_tokens = 0
        self.tokens = array("q")
        self.probe = array("q")

    def forget_tokens(self) -> None:
        """Keep only the ids of what is resident (and one more, for EAGLE's bigram keys)."""
        del self.tokens[self.resident_tokens + 1 :]


class Trajectory:
    """One agent's growing token history.

    `requests` maps the ids of its requests in flight to their arrival numbers. `branches` is ordered from
    the least to the most recently extended; the last one is what the next request is expected to extend.
    """

    __slots__ = (
        "branches",
        "closing",
        "footprint",
        "hints",
        "idle_since",
        "interleaves",
        "key",
        "memo",
        "parked",
        "requests",
        "serial",
        "source",
    )

    def __init__(self, key: TrajectoryKey, serial: int, source: str) -> None:
        self.key = key
        self.serial = serial
        self.source = source
        self.requests: dict[str, int] = {}
        self.branches: list[Branch] = []
        self.idle_since = 0.0
        self.hints: Any = None
        self.memo: Any = None
        self.footprint: Any = None
        self.closing = False
        self.parked = False
        self.interleaves = False

    @property
    def state(self) -> State:
        if self.requests:
            return State.ACTIVE
        return State.COMPLETED if self.closing else State.IDLE

    @property
    def resident_tokens(self) -> int:
        return self.branches[-1].resident_tokens if self.branches else 0

    @property
    def missing_tokens(self) -> int:
        """Counted from the high-water history length, so a trimmed tail does not look complete."""
        if not self.branches:
            return 0
        return self.branches[-1].history_tokens - self.branches[-1].resident_tokens
