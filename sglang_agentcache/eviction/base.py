"""The contract of an eviction policy: which idle trajectory loses its next tail chunk.

A policy orders *idle* trajectories and nothing else. Who is idle, which of its tokens are private and
unlocked, and how a chunk is cut is the cache's business (`sglang_agentcache.cache`). Completed and
superseded histories never reach a policy: they go before it is asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol


class IdleTrajectory(Protocol):
    """What a policy may read of an idle trajectory (`trajectory.table.Trajectory`).

    Token counts are in the tree's units; they change while the trajectory is idle, so a policy reads
    them when it orders, not when the trajectory joins.
    """

    memo: Any
    """The policy's own notes on this trajectory; lives as long as it does. None until the policy writes it."""

    @property
    def hints(self) -> Any:
        """What its last request said or showed (`serving.hints.Hints`): the tool calls it waits for."""

    @property
    def closing(self) -> bool:
        """A client has said that it is complete; it will not return."""

    @property
    def serial(self) -> int:
        """Creation counter: unique, equal on every rank, breaks ties."""

    @property
    def idle_since(self) -> float:
        """Clock seconds at which the last request finished."""

    @property
    def resident_tokens(self) -> int:
        """Tokens of its history that are on the device."""

    @property
    def missing_tokens(self) -> int:
        """Tokens of its history that a return would have to prefill again."""


class EvictionPolicy(ABC):
    """An order over idle trajectories.

    The cache calls `join` when a trajectory turns idle, `leave` when it returns, completes or has nothing
    left to give, and during an eviction alternates `victim` and `visited` until the shortfall is met.
    A policy must name a victim as long as any trajectory is joined: a wrong prediction may change the
    order, never block an allocation. Nothing may depend on `id()`, `hash(str)` or the wall clock.
    """

    name: ClassVar[str]

    def start(self) -> None:
        """Load what serving needs; called once, before the first `join`. The constructor only checks its arguments."""

    @abstractmethod
    def join(self, trajectory: IdleTrajectory, now: float) -> None:
        """Take a trajectory that has just turned idle into the order."""

    @abstractmethod
    def leave(self, trajectory: IdleTrajectory) -> None:
        """Drop a trajectory from the order; unknown ones are ignored."""

    @abstractmethod
    def victim(self, now: float) -> IdleTrajectory | None:
        """The trajectory that gives its next tail chunk, or None if none is joined."""

    @abstractmethod
    def visited(self, trajectory: IdleTrajectory, now: float) -> None:
        """A tail chunk of the victim has been cut; it stays joined."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of joined trajectories."""

    def begin_eviction(self, now: float) -> None:
        """Victims are about to be asked for, up to one shortfall's worth."""

    def evicted(self, tokens: int, capacity_tokens: int, now: float) -> None:
        """An eviction has freed `tokens` of a pool of `capacity_tokens`, by whatever order."""

    def refined(self, trajectory: IdleTrajectory, now: float) -> None:
        """More has become known of an idle trajectory, joined or not: its `hints`, `idle_since`, history length."""

    def returned(self, trajectory: IdleTrajectory, idle_s: float) -> None:
        """A trajectory has come back after `idle_s` seconds of idleness; its `hints` are still the old ones."""

    def completion_signalled(self) -> None:
        """A client has said that a trajectory is complete."""
