"""Everything the simulator can compare, by name.

A policy that the server has is the server's own object (`sglang_agentcache.eviction.POLICIES`, or SGLang's
own order in its own cache class). The two that only an evaluation can have live here: they are told what no
server knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sglang_agentcache.eviction import POLICIES, EvictionPolicy, IdleTrajectory
from sglang_agentcache.eviction.ranked import RankedPolicy

OPTION_SEPARATOR = ":"


class Facts:
    """What the simulated clients know and a server does not; the simulator keeps it up to date."""

    def __init__(self) -> None:
        self.next_use: dict[str, float] = {}
        """Clock seconds of each trajectory's next request; absent once it is over."""
        self._idle_sum: dict[str, float] = {}
        self._idle_count: dict[str, int] = {}
        self._all_sum = 0.0
        self._all_count = 0

    def returned(self, trajectory_id: str, idle_s: float) -> None:
        """A trajectory has come back after ``idle_s`` seconds."""
        self._idle_sum[trajectory_id] = self._idle_sum.get(trajectory_id, 0.0) + idle_s
        self._idle_count[trajectory_id] = self._idle_count.get(trajectory_id, 0) + 1
        self._all_sum += idle_s
        self._all_count += 1

    def mean_idle(self, trajectory_id: str) -> float:
        """Mean idle time of this trajectory so far; of all of them until it has one, 0 until anyone has."""
        count = self._idle_count.get(trajectory_id, 0)
        if count:
            return self._idle_sum[trajectory_id] / count
        return self._all_sum / self._all_count if self._all_count else 0.0


class FurthestFirst(EvictionPolicy):
    """Victim: the idle trajectory whose next use is expected furthest away; ties go to the older one."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._joined: dict[int, IdleTrajectory] = {}

    def join(self, trajectory: IdleTrajectory, now: float) -> None:
        self._joined[trajectory.serial] = trajectory

    def leave(self, trajectory: IdleTrajectory) -> None:
        self._joined.pop(trajectory.serial, None)

    def victim(self, now: float) -> IdleTrajectory | None:
        return max(
            self._joined.values(), key=lambda item: (self.next_use(item, now), -item.serial), default=None
        )

    def visited(self, trajectory: IdleTrajectory, now: float) -> None:
        """Nothing to do: the order does not depend on what has been taken."""

    def __len__(self) -> int:
        return len(self._joined)

    def next_use(self, trajectory: IdleTrajectory, now: float) -> float:
        """Clock seconds at which the trajectory is expected back."""
        raise NotImplementedError


class Oracle(FurthestFirst):
    """Belady on tail chunks: true next use. A bound on the mean that no server can reach."""

    name: ClassVar[str] = "oracle"

    def next_use(self, trajectory: IdleTrajectory, now: float) -> float:
        return self._facts.next_use.get(trajectory_id(trajectory), float("inf"))


class InferCept(FurthestFirst):
    """The session's own mean tool duration so far (CacheWise 6.1's baseline after InferCept).

    A trajectory that has been idle for longer than its mean is expected at once, and so is kept.
    """

    name: ClassVar[str] = "infercept"

    def next_use(self, trajectory: IdleTrajectory, now: float) -> float:
        return max(now, trajectory.idle_since + self._facts.mean_idle(trajectory_id(trajectory)))


def trajectory_id(trajectory: IdleTrajectory) -> str:
    """The client's id of a trajectory of the table."""
    return str(trajectory.key.trajectory_id)  # type: ignore[attr-defined]


FACT_POLICIES: Mapping[str, type[FurthestFirst]] = {Oracle.name: Oracle, InferCept.name: InferCept}
TLRU_DEFAULTS = {"threshold": 8192, "next_prompt_estimate": 1024}
"""SGLang's `tlru` asks for both. Chunked prefill's step as the budget that a turn may prefill again."""


@dataclass(frozen=True)
class Baseline:
    """One cache to simulate.

    Attributes:
        label: as given on the command line; names the row.
        policy: SGLang's policy, one of `POLICIES`, or one of `FACT_POLICIES`.
        options: of the policy (`--radix-eviction-policy-config`).
        stock: SGLang's own cache class, which knows no trajectories and no completion.
        completion: whether the clients say that a trajectory is over; None leaves it to the run.
        session_references: SGLang's `--enable-session-radix-cache` (Python tree core).
        truth: clients say how long each tool will take (CacheWise*, 6.1).
        blind: the cache hears nothing of tool calls, as a prefill worker without the hint channel.
    """

    label: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stock: bool = False
    completion: bool | None = None
    session_references: bool = False
    truth: bool = False
    blind: bool = False


_NAMED = {
    item.label: item
    for item in (
        Baseline("lru", "lru", stock=True),
        Baseline("slru", "slru", stock=True),
        Baseline("tlru", "tlru", TLRU_DEFAULTS, stock=True),
        Baseline("priority", "priority", stock=True),
        Baseline("session-ref", "lru", stock=True, session_references=True),
        Baseline("lru+completion", "lru", completion=True),
        Baseline("whole", "rr", {"chunk_tokens": 0}),
        Baseline("rr-leaf", "rr", {"visit": "leaf"}),
        Baseline("rr+tiers", "rr", {"tiers": "on"}, completion=False),
        Baseline("infercept", "infercept"),
        Baseline("oracle", "oracle"),
    )
}
_PREDICTING = [name for name, policy in POLICIES.items() if issubclass(policy, RankedPolicy)]
_NAMED |= {f"{name}+truth": Baseline(f"{name}+truth", name, truth=True) for name in _PREDICTING}
_NAMED |= {f"{name}+blind": Baseline(f"{name}+blind", name, blind=True) for name in _PREDICTING}
"""A predicting policy with a perfect predictor, and with nothing but the prior of all tools."""


def names() -> tuple[str, ...]:
    """All names, SGLang's own first."""
    return (*_NAMED, *(name for name in POLICIES if name not in _NAMED))


def baseline(text: str) -> Baseline:
    """``NAME`` or ``NAME:KEY=VALUE:...``, where the options go to the policy as JSON values.

    Raises:
        ValueError: unknown name, or an option that is not ``KEY=VALUE``.
    """
    name, *given = text.split(OPTION_SEPARATOR)
    if name not in names():
        raise ValueError(f"--policies: allowed are {', '.join(names())}; got {name!r}")
    known = _NAMED.get(name, Baseline(name, name))
    options = dict(known.options)
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(
                f"--policies: options are KEY=VALUE after a {OPTION_SEPARATOR!r}; got {item!r} in {text!r}"
            )
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return replace(known, label=text, options=options)
