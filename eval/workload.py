"""Generates agent trajectories: seeded, text-free, fitted to the figures of public agent runs.

Three profiles: ``coding-agent`` (interactive coding sessions and their sub-agents), ``swe-bench`` (one
issue, one shell, no person) and ``tau2`` (customer service: short tools, a user every other turn). The fit
is to P10, P50, P90 and P99 of turns, first prompt, new and output tokens per turn and of gaps per tool.
What is not modelled: parallel calls, time of day, and how a tool's result depends on the one before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from eval import trace
from eval.tool_model import (
    BENCH_TOOLS,
    CODING_TOOLS,
    SERVICE_TOOLS,
    SHELL,
    SHELL_TOOL_NAMES,
    Quantiles,
    Tool,
    call,
    classify,
)
from eval.trace import Trajectory, Turn

# Share of a trajectory's own level in each draw: sessions with long outputs have them throughout.
_OWN = 0.45


@dataclass(frozen=True)
class Profile:
    """What one kind of agent does. Tokens per turn and seconds, as quantiles."""

    turns: Quantiles
    first_private: Quantiles
    """Tokens of the first prompt after the shared prefix."""
    new: Quantiles
    output: Quantiles
    tools: Mapping[str, Tool]
    user_share: float
    """Chance that a turn (not the first) is triggered by a person."""
    user_gap: Quantiles
    prefixes: tuple[tuple[int, float], ...]
    """Shared prefixes: tokens, weight."""
    window: int
    """Context at which the agent compacts its history."""
    longest_tool_s: float = 3600.0
    """The tool model's tails include approvals by a person; unattended agents have none."""


PROFILES: Mapping[str, Profile] = {
    "coding-agent": Profile(
        turns=Quantiles(6, 14, 117, 334, 1024),
        first_private=Quantiles(300, 8_000, 21_800, 35_000, 60_000),
        new=Quantiles(47, 276, 3_200, 20_000, 60_000),
        output=Quantiles(47, 167, 849, 3_500, 16_000),
        tools=CODING_TOOLS,
        user_share=0.12,
        user_gap=Quantiles(8, 80, 1_028, 36_114, 100_000),
        prefixes=((6_000, 2), (10_200, 1), (14_500, 3), (22_000, 3), (31_000, 1)),
        window=400_000,
    ),
    "swe-bench": Profile(
        turns=Quantiles(22, 36, 66, 115, 250),
        first_private=Quantiles(1_240, 1_490, 2_280, 4_320, 9_000),
        new=Quantiles(17, 91, 757, 3_400, 12_000),
        output=Quantiles(27, 89, 681, 2_400, 8_000),
        tools=BENCH_TOOLS,
        user_share=0.02,
        user_gap=Quantiles(0.1, 0.2, 0.5, 1, 5),
        prefixes=((156, 1),),
        window=128_000,
        # P99 of shell calls in unattended permission modes.
        longest_tool_s=111.0,
    ),
    "tau2": Profile(
        turns=Quantiles(5, 9, 18, 30, 60),
        first_private=Quantiles(15, 41, 252, 3_300, 5_000),
        new=Quantiles(12, 86, 364, 1_400, 5_000),
        output=Quantiles(24, 55, 257, 880, 3_000),
        tools=SERVICE_TOOLS,
        user_share=0.49,
        user_gap=Quantiles(0.8, 1.5, 6.1, 60, 605),
        prefixes=((1_540, 3), (1_650, 2), (1_980, 1)),
        window=64_000,
    ),
}

_AGENT_PROFILES = {"mini-swe-agent": "swe-bench", "tau-agent": "tau2"}


def profile(name: str) -> Profile:
    """A profile by name. Raises ValueError naming the profiles there are."""
    if name not in PROFILES:
        raise ValueError(f"profile: allowed are {', '.join(PROFILES)}; got {name!r}")
    return PROFILES[name]


def _rng(*key: str | int) -> np.random.Generator:
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype="<u4"))


class _Level:
    """Draws scores around one trajectory's own level."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._own = rng.standard_normal()

    def draw(self, quantiles: Quantiles) -> float:
        noise = self._rng.standard_normal()
        return quantiles.at(_OWN * self._own + (1 - _OWN**2) ** 0.5 * noise)


def _turns(spec: Profile, shared: int, count: int, rng: np.random.Generator) -> list[Turn]:
    new, output, pace = (_Level(rng) for _ in range(3))
    names = list(spec.tools)
    weights = np.array([spec.tools[name].weight for name in names])
    first = shared + max(1, round(spec.first_private.at(rng.standard_normal())))
    turns = [
        Turn(
            kind="user",
            prompt_tokens=first,
            new_input_tokens=first,
            output_tokens=max(1, round(output.draw(spec.output))),
            t_s=0.0,
        )
    ]
    for _ in range(count - 1):
        context = turns[-1].prompt_tokens + turns[-1].output_tokens
        fresh = max(1, round(new.draw(spec.new)))
        reset = context + fresh > spec.window
        # A compacted history is the shared prefix and a summary, about as long as a first prompt.
        kept = shared if reset else context
        fresh = fresh if not reset else max(1, first - shared)
        fields: dict[str, object] = {}
        if rng.random() < spec.user_share:
            gap = spec.user_gap.at(rng.standard_normal())
        else:
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            arguments, duration = call(spec.tools[name], rng)
            gap = min(pace.draw(duration), spec.longest_tool_s)
            fields = {"tool_name": name, "tool_args": arguments, "human": spec.tools[name].human}
        turns.append(
            trace.replace_turn(
                Turn(
                    kind="tool" if fields else "user",
                    prompt_tokens=kept + fresh,
                    new_input_tokens=fresh,
                    output_tokens=max(1, round(output.draw(spec.output))),
                    gap_s=round(gap, 3),
                    reset=reset,
                ),
                **fields,
            )
        )
    return turns


def generate(name: str, count: int, seed: int, min_turns: int = 1) -> Iterator[Trajectory]:
    """``count`` trajectories of a profile. The i-th one depends on the profile, the seed and i alone.

    Raises:
        ValueError: unknown profile, negative count.
    """
    spec = profile(name)
    if count < 0:
        raise ValueError(f"trajectories: at least 0, got {count}")
    sizes, weights = zip(*spec.prefixes, strict=True)
    share = np.array(weights) / sum(weights)
    for index in range(count):
        rng = _rng("workload", name, seed, index)
        prefix = int(rng.choice(len(sizes), p=share))
        length = max(1, min_turns, round(spec.turns.at(rng.standard_normal())))
        turns = _turns(spec, sizes[prefix], length, rng)
        identity = f"{name}-{seed}-{index}"
        yield Trajectory(
            trajectory_id=identity,
            session_group=identity,
            source=f"generated/{name}",
            agent=f"generated-{name}",
            turns=turns,
            n_turns=len(turns),
            shared_prefix_id=f"{name}-prefix-{prefix}",
            shared_prefix_tokens=sizes[prefix],
            shared_prefix_est="generated",
        )


def _unknown_gap(turn: Turn, spec: Profile) -> Quantiles:
    if turn.kind == "user":
        return spec.user_gap
    tool = spec.tools.get(turn.tool_name or "")
    if tool is not None and tool.gap is not None:
        return tool.gap
    if tool is not None or turn.tool_name in SHELL_TOOL_NAMES:
        return SHELL[classify(turn.tool_args or "")].gap
    # An unknown tool takes what the commonest tool of the profile with a time of its own takes.
    timed = [entry for entry in spec.tools.values() if entry.gap is not None]
    common = max(timed, key=lambda entry: entry.weight, default=None)
    return common.gap if common is not None and common.gap is not None else SHELL["look"].gap


def fill_gaps(trajectory: Trajectory, seed: int) -> Trajectory:
    """Replace unknown gaps (not the first turn's) by draws from the tool model; the known ones stay."""
    if all(turn.gap_s is not None for turn in trajectory.turns[1:]):
        return trajectory
    spec = PROFILES[_AGENT_PROFILES.get(trajectory.agent or "", "coding-agent")]
    rng = _rng("gaps", seed, trajectory.trajectory_id)
    pace = _Level(rng)

    def drawn(turn: Turn) -> float:
        seconds = pace.draw(_unknown_gap(turn, spec))
        return round(seconds if turn.kind == "user" else min(seconds, spec.longest_tool_s), 3)

    turns = [
        turn if index == 0 or turn.gap_s is not None else trace.replace_turn(turn, gap_s=drawn(turn))
        for index, turn in enumerate(trajectory.turns)
    ]
    return trace.replace(trajectory, turns=turns)
