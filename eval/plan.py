"""Chooses and sizes a workload for a small CPU server: the same trajectories and pool for every policy."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from eval import calibrate, dataset
from eval.replay import scale_from
from eval.scale import (
    Demand,
    Scale,
    apply,
    expected_demand,
    limit_waiting,
    longest_waiting_first,
    stretch_gaps,
)
from eval.trace import Trajectory

PAPER_CHUNK_TOKENS = 1024
"""RR-EVICT section 4; shrunk with the contexts."""

UTILISATION = 0.5
"""Share of the time that the server is meant to be busy under the first policy: idle agents are what policies
choose from."""
LONGEST_REPLAY_S = 80.0
"""Four policies, each with a server start, have to fit ten minutes."""
LONGEST_WAIT_S = 40.0
"""Gaps of one trajectory in total: with one agent left there is no pressure, only time that passes."""

SMALL = Scale(gap_cap_s=10, human_cap_s=20, max_turns=20, max_context=3000)
"""Common to all workloads: sessions short enough that some end and others are admitted within a minute."""


@dataclass(frozen=True)
class Preset:
    """A workload's size on a CPU; its gaps are fitted to the machine's speed (`eval.calibrate`)."""

    trajectories: int
    min_turns: int
    """Shorter ones are left out: there the tail is first prompts, which are new under every policy."""
    scale: Scale


PRESETS: Mapping[str, Preset] = {
    "coding-agent": Preset(54, 12, dataclasses.replace(SMALL, tokens=1 / 64)),
    "swe-bench": Preset(48, 12, dataclasses.replace(SMALL, tokens=1 / 32)),
    "tau2": Preset(64, 6, dataclasses.replace(SMALL, tokens=1 / 8)),
}


@dataclass(frozen=True)
class Plan:
    """One workload at one size, the same for every policy.

    ``fitted`` says how the gaps were fitted to the machine; None while they still have to be.
    """

    trajectories: list[Trajectory]
    origin: str
    scale: Scale
    demand: Demand
    pool_tokens: int
    chunk_tokens: int
    fitted: str | None

    def fit_gaps(self, speed: calibrate.Speed) -> Plan:
        """The same plan with gaps that suit a server of this speed."""
        # What does not fit is missing, but those who return soon, and most do, find theirs: about half of it.
        lost = max(0.0, 1 - self.pool_tokens / self.demand.live_tokens) / 2
        service = calibrate.service_s(self.trajectories, speed, lost)
        concurrency = self.demand.concurrency
        factor = calibrate.gap_factor(self.trajectories, service, concurrency, UTILISATION, LONGEST_REPLAY_S)
        trajectories = limit_waiting(stretch_gaps(self.trajectories, factor), LONGEST_WAIT_S)
        return dataclasses.replace(
            self,
            trajectories=trajectories,
            scale=dataclasses.replace(self.scale, gaps=self.scale.gaps * factor),
            demand=expected_demand(trajectories, concurrency),
            fitted=(
                f"{speed.describe()}; expected service time {service * 1e3:.0f} ms a request; "
                f"a trajectory ends when it has waited {LONGEST_WAIT_S:.0f} s"
            ),
        )

    def describe(self) -> str:
        """What is run, for the log."""
        return (
            f"workload: {self.origin}\n{self.fitted}\n"
            f"scale: {self.scale.describe()}\n{self.demand.describe()}\n"
            f"pool: {self.pool_tokens:,} tokens, expected live KV "
            f"{self.demand.live_tokens / self.pool_tokens:.2f} of it; "
            f"tail chunk {self.chunk_tokens} tokens ({PAPER_CHUNK_TOKENS} scaled)"
        )


def make_plan(args: argparse.Namespace) -> Plan:
    """Choose, scale and size. Raises ValueError naming the flag that does not fit."""
    for name in ("concurrency", "page_size", "pressure", "pool_tokens", "trajectories"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: above 0, got {value}")
    preset = PRESETS[args.workload]
    shrink = scale_from(args, preset.scale)
    folder = None if args.generated else dataset.data_folder(args.data)
    count = args.trajectories or preset.trajectories
    chosen, origin = dataset.load(args.workload, count, args.seed, folder, preset.min_turns)
    trajectories = longest_waiting_first(list(apply(chosen, shrink)), args.concurrency // 2)
    demand = expected_demand(trajectories, args.concurrency)
    pool = args.pool_tokens or demand.pool_for(args.pressure)
    pool -= pool % args.page_size
    if demand.peak > pool:
        raise ValueError(
            f"pool of {pool} tokens: the longest context has {demand.peak}; raise --pool-tokens or "
            "--concurrency, or lower --max-context or --pressure"
        )
    chunk = round(PAPER_CHUNK_TOKENS * shrink.tokens)
    chunk = max(args.page_size, chunk - chunk % args.page_size)
    fitted = None if args.gap_scale is None else "gaps as --gap-scale asks"
    origin += f" (each of at least {preset.min_turns} turns)"
    return Plan(trajectories, origin, shrink, demand, pool, chunk, fitted)
