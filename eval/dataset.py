"""Finds the trajectories of a workload by name: recorded ones where they are, generated ones where not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

from eval import workload
from eval.trace import Trajectory, read_traces

RECORDED = {
    "coding-agent": "coding_agent_train.jsonl.gz",
    "kv-tester": "kv_tester_train.jsonl.gz",
    "swe-bench": "swebench_miniswe_train.jsonl.gz",
    "tau2": "tau_train.jsonl.gz",
}
ENVIRONMENT = "AGENTCACHE_DATA"


def data_folder(given: str | None = None) -> Path | None:
    """The folder of recorded traces: ``given``, else $AGENTCACHE_DATA, else ``../shared/data``.

    None if none of them is there. Raises ValueError if a folder that was named does not exist.
    """
    for name, origin in ((given, "--data"), (os.environ.get(ENVIRONMENT), ENVIRONMENT)):
        if name:
            if not Path(name).is_dir():
                raise ValueError(f"{origin}: {name} is not a folder")
            return Path(name)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if beside.is_dir() else None


def sample_by_source(
    trajectories: Iterable[Trajectory], count: int, seed: int, min_turns: int = 1
) -> list[Trajectory]:
    """Up to ``count`` trajectories, taking turns between the sources so that no project dominates.

    Seeded; the order of the result mixes the sources.
    """
    by_source: dict[str, list[Trajectory]] = {}
    for item in trajectories:
        if len(item.turns) >= min_turns:
            by_source.setdefault(item.source, []).append(item)
    rng = random.Random(f"sample:{seed}")
    piles = [by_source[name] for name in sorted(by_source)]
    for pile in piles:
        rng.shuffle(pile)
    rng.shuffle(piles)
    chosen: list[Trajectory] = []
    while piles and len(chosen) < count:
        for pile in piles:
            if len(chosen) < count:
                chosen.append(pile.pop())
        piles = [pile for pile in piles if pile]
    rng.shuffle(chosen)
    return chosen


def choose(
    trajectories: Iterable[Trajectory], count: int | None, seed: int, min_turns: int = 1
) -> list[Trajectory]:
    """All trajectories, or a sample of ``count``, with every gap known (see `workload.fill_gaps`)."""
    if count is None:
        chosen = [item for item in trajectories if len(item.turns) >= min_turns]
    else:
        chosen = sample_by_source(trajectories, count, seed, min_turns)
    return [workload.fill_gaps(item, seed) for item in chosen]


def load(
    name: str, count: int, seed: int, folder: Path | None, min_turns: int = 1
) -> tuple[list[Trajectory], str]:
    """``count`` trajectories of workload ``name`` with every gap known, and a sentence that says where from.

    Recorded ones come from ``folder`` if it has the workload's file; gaps that the recording does not tell
    are drawn from the generator's tool model. Raises ValueError for an unknown workload.
    """
    if name not in RECORDED:
        raise ValueError(f"workload: allowed are {', '.join(RECORDED)}; got {name!r}")
    recorded = folder / RECORDED[name] if folder is not None else None
    if recorded is not None and recorded.is_file():
        chosen = choose(read_traces(recorded), count, seed, min_turns)
        return chosen, (
            f"{len(chosen)} recorded trajectories of {recorded.name}, sampled by source; "
            "gaps that the recording does not tell are drawn from the generator's tool model"
        )
    if name not in workload.PROFILES:
        raise ValueError(
            f"workload: {name} exists only as a recording; generated ones are {', '.join(workload.PROFILES)}"
        )
    chosen = list(workload.generate(name, count, seed, min_turns=min_turns))
    return chosen, f"{len(chosen)} trajectories from the workload generator, profile {name}"
