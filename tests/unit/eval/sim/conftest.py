"""Small generated workloads, and one call to simulate them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from eval import scale, workload
from eval.sim.baselines import baseline
from eval.sim.cost import roofline
from eval.sim.simulation import Outcome, Run, Simulation
from eval.trace import Trajectory


@pytest.fixture(scope="session")
def trajectories() -> Callable[..., list[Trajectory]]:
    def make(profile: str, count: int, seed: int = 0, **limits: Any) -> list[Trajectory]:
        return list(
            scale.apply(workload.generate(profile, count, seed), scale.Scale(human_cap_s=60, **limits))
        )

    return make


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Outcome]:
    def run(
        policy: str,
        items: Sequence[Trajectory],
        concurrency: int,
        capacity: int,
        gpu: str = "h200",
        **options: Any,
    ) -> Outcome:
        options.setdefault("ramp_s", float(concurrency))
        parameters = Run(baseline(policy), concurrency, capacity, check=True, **options)
        return Simulation(parameters, items, roofline("qwen3-8b", gpu)).run()

    return run
