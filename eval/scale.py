"""Shrinks a workload so that a small pool shows the paper's regime, and says by how much.

The regime (RR-EVICT section 4, figure 4): the KV of active requests fits the pool, active plus live idle KV
does not. Contexts, outputs and the policy's chunk shrink by one factor, gaps by another, so the proportions
that eviction depends on stay: history to new tokens to chunk to pool, idle time to service time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eval import trace
from eval.trace import Trajectory, Turn


@dataclass(frozen=True)
class Scale:
    """What is done to every trajectory. Raises ValueError naming the field that is out of range."""

    tokens: float = 1.0
    """Factor on prompts, kept prefixes, shared prefixes and outputs."""
    gaps: float = 1.0
    """Factor on the gaps, after the caps."""
    gap_cap_s: float | None = None
    """Longest recorded tool gap that is replayed in full."""
    human_cap_s: float | None = None
    """The same for gaps that wait for a person."""
    boundary_s: float | None = None
    """A human gap longer than this ends the session; what follows is a new trajectory (CacheWise 6.1)."""
    max_turns: int | None = None
    max_context: int | None = None
    """In scaled tokens: a trajectory ends before the turn whose prompt and output would exceed it."""

    def __post_init__(self) -> None:
        for name in ("tokens", "gaps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} scale: above 0, got {getattr(self, name)}")
        for name in ("gap_cap_s", "human_cap_s", "boundary_s", "max_turns", "max_context"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}: above 0, got {value}")

    def describe(self) -> str:
        """One line for the log: what was shrunk, by how much."""
        caps = [
            text
            for value, text in (
                (self.gap_cap_s, f"tool gaps capped at {self.gap_cap_s} s"),
                (self.human_cap_s, f"human gaps capped at {self.human_cap_s} s"),
                (self.boundary_s, f"human gaps over {self.boundary_s} s end the session"),
                (self.max_turns, f"at most {self.max_turns} turns"),
                (self.max_context, f"contexts at most {self.max_context} tokens after scaling"),
            )
            if value is not None
        ]
        return ", ".join([f"tokens x {self.tokens:.4g}", f"gaps x {self.gaps:.4g}", *caps])


def waits_for_person(turn: Turn) -> bool:
    """Whether the gap before this turn is a person's, not a tool's."""
    return turn.human or turn.kind == "user"


def split_sessions(trajectory: Trajectory, boundary_s: float) -> list[Trajectory]:
    """Cut a trajectory at human gaps longer than ``boundary_s`` seconds.

    A later part starts with its whole context as a first prompt, of which only the shared prefix is shared.
    """
    parts: list[list[Turn]] = [[]]
    for turn in trajectory.turns:
        if parts[-1] and waits_for_person(turn) and (turn.gap_s or 0.0) > boundary_s:
            parts.append(
                [trace.replace_turn(turn, new_input_tokens=turn.prompt_tokens, gap_s=None, reset=False)]
            )
        else:
            parts[-1].append(turn)
    if len(parts) == 1:
        return [trajectory]
    return [
        trace.replace(trajectory, trajectory_id=f"{trajectory.trajectory_id}.{number}", turns=turns)
        for number, turns in enumerate(parts)
    ]


def _scaled_gap(turn: Turn, scale: Scale) -> float | None:
    if turn.gap_s is None:
        return None
    cap = scale.human_cap_s if waits_for_person(turn) else scale.gap_cap_s
    return (turn.gap_s if cap is None else min(turn.gap_s, cap)) * scale.gaps


def _shrink(trajectory: Trajectory, scale: Scale) -> Trajectory | None:
    turns: list[Turn] = []
    context = 0
    for turn in trajectory.turns[: scale.max_turns]:
        kept = min(round(turn.kept_tokens * scale.tokens), context)
        new = max(1, round(turn.prompt_tokens * scale.tokens) - kept)
        output = max(1, round(turn.output_tokens * scale.tokens))
        if scale.max_context is not None and kept + new + output > scale.max_context:
            break
        context = kept + new + output
        turns.append(
            trace.replace_turn(
                turn,
                prompt_tokens=kept + new,
                new_input_tokens=new,
                output_tokens=output,
                gap_s=_scaled_gap(turn, scale),
                # These describe the original service; scaled or not, they would say nothing true here.
                cached_tokens=None,
                common_prefix_tokens=None,
            )
        )
    if not turns:
        return None
    shared = min(round(trajectory.shared_prefix_tokens * scale.tokens), turns[0].prompt_tokens)
    return trace.replace(
        trajectory,
        turns=turns,
        shared_prefix_tokens=shared,
        truncated=trajectory.truncated or len(turns) < len(trajectory.turns),
    )


def apply(trajectories: Iterable[Trajectory], scale: Scale) -> Iterator[Trajectory]:
    """Scale each trajectory; one whose first turn already exceeds ``max_context`` is left out."""
    for trajectory in trajectories:
        parts = [trajectory] if scale.boundary_s is None else split_sessions(trajectory, scale.boundary_s)
        for part in parts:
            scaled = _shrink(part, scale)
            if scaled is not None:
                yield scaled


def stretch_gaps(trajectories: Iterable[Trajectory], factor: float) -> list[Trajectory]:
    """Multiply every known gap."""
    return [
        trace.replace(
            item,
            turns=[
                turn if turn.gap_s is None else trace.replace_turn(turn, gap_s=turn.gap_s * factor)
                for turn in item.turns
            ],
        )
        for item in trajectories
    ]


def limit_waiting(trajectories: Iterable[Trajectory], longest_s: float) -> list[Trajectory]:
    """End each trajectory before the turn at which its gaps add up to more than ``longest_s`` seconds."""
    limited = []
    for item in trajectories:
        waited = itertools.accumulate(turn.gap_s or 0.0 for turn in item.turns)
        turns = [turn for turn, total in zip(item.turns, waited, strict=True) if total <= longest_s]
        limited.append(
            trace.replace(item, turns=turns, truncated=True) if len(turns) < len(item.turns) else item
        )
    return limited


def longest_waiting_first(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Move the ``count`` trajectories with the longest gaps to the front, the rest stays in order.

    In a closed loop a long trajectory that is admitted last leaves all other agents without work.
    """
    order = sorted(
        range(len(trajectories)), key=lambda i: -sum(t.gap_s or 0.0 for t in trajectories[i].turns)
    )
    first = set(order[:count])
    return [trajectories[i] for i in sorted(first)] + [
        item for i, item in enumerate(trajectories) if i not in first
    ]


@dataclass(frozen=True)
class Demand:
    """What a closed loop of ``concurrency`` agents is expected to hold, in tokens."""

    concurrency: int
    trajectories: int
    turns: int
    mean_private: float
    """Mean private context after a turn, over all turns."""
    shared: float
    """Shared prefixes that are in use together (each counted once)."""
    mean_context: float
    """Mean context after a turn, shared prefix included."""
    peak: int
    """Longest context of any single request."""
    mean_gap_s: float

    @property
    def live_tokens(self) -> float:
        """Expected KV of all live trajectories, active and idle."""
        return self.concurrency * self.mean_private + self.shared

    def describe(self) -> str:
        """One line for the log."""
        return (
            f"demand: {self.trajectories} trajectories, {self.turns} requests, {self.concurrency} live; "
            f"expected live KV {self.live_tokens:,.0f} tokens ({self.shared:,.0f} shared), "
            f"longest context {self.peak:,}, "
            f"mean gap {self.mean_gap_s:.2f} s"
        )

    def pool_for(self, pressure: float) -> int:
        """Pool size, in tokens, at which live KV is ``pressure`` times the pool."""
        return round(self.live_tokens / pressure)


def expected_demand(trajectories: Sequence[Trajectory], concurrency: int) -> Demand:
    """Expected demand of a closed loop over these trajectories. Raises ValueError if there are none."""
    if not trajectories:
        raise ValueError("no trajectory is left to replay; allow longer contexts or a smaller token scale")
    turns = [(item, turn) for item in trajectories for turn in item.turns]
    private = [turn.prompt_tokens + turn.output_tokens - item.shared_prefix_tokens for item, turn in turns]
    prefixes: dict[str | None, list[int]] = {}
    for item, _ in turns:
        prefixes.setdefault(item.shared_prefix_id, []).append(item.shared_prefix_tokens)
    # A prefix that a share p of the turns use is held by one of n live agents with chance 1 - (1 - p)^n.
    shared = sum(
        max(sizes) * (1 - (1 - len(sizes) / len(turns)) ** concurrency) for sizes in prefixes.values()
    )
    gaps = [turn.gap_s for _, turn in turns if turn.gap_s is not None]
    return Demand(
        concurrency=concurrency,
        trajectories=len(trajectories),
        turns=len(turns),
        mean_private=sum(private) / len(private),
        shared=shared,
        mean_context=sum(turn.prompt_tokens + turn.output_tokens for _, turn in turns) / len(turns),
        peak=max(item.peak_tokens for item in trajectories),
        mean_gap_s=sum(gaps) / len(gaps) if gaps else 0.0,
    )
