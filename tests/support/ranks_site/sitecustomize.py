"""Python imports this when it starts, if this folder is on PYTHONPATH: the ranks of a server become unlike each other.

In the process that starts the schedulers: each one gets a PYTHONHASHSEED of its own, its rank, and `unlike_ranks`
around its main function. In a scheduler: its clocks are minutes off, run at another pace, and jump both ways.
"""

from __future__ import annotations

import multiprocessing.process
import os
import time
from collections.abc import Callable
from typing import Any

RANK = "AGENTCACHE_TEST_RANK"
HASH_SEEDS = {0: "0", 1: "4242"}
CLOCKS = ("time", "monotonic", "perf_counter")

jumping_since: float | None = None
"""Set by the first eviction: until then PyTorch compiles, and takes a compiler for broken if the clock jumps."""


def wrong_by(rank: int, seconds: float) -> float:
    """How much the clocks of a rank are ahead, so many seconds after the machine was started."""
    jump = int(seconds - jumping_since) if jumping_since is not None else 0
    if rank == 0:
        # The leader's only jump: back by 70 s, then on by 150 s, so that its time does go on.
        return 40.0 * jump - 110.0 * (jump % 2)
    return 731.0 + 0.5 * seconds + 120.0 * ((2 * jump + 3) % 7 - 3)


def skew_clocks(rank: int) -> None:
    true = time.monotonic
    time.true_monotonic = true  # type: ignore[attr-defined]

    def skewed(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + wrong_by(rank, true())

    def skewed_ns(clock: Callable[[], int]) -> Callable[[], int]:
        return lambda: clock() + int(1e9 * wrong_by(rank, true()))

    for name in CLOCKS:
        setattr(time, name, skewed(getattr(time, name)))
        setattr(time, name + "_ns", skewed_ns(getattr(time, name + "_ns")))


def start_ranks_apart() -> None:
    start = multiprocessing.process.BaseProcess.start

    def start_apart(process: Any) -> None:
        if getattr(process._target, "__name__", "") != "run_scheduler_process":
            start(process)
            return
        import unlike_ranks

        # Tensor- and pipeline-parallel rank; one of the two is 0.
        rank = process._args[3] + process._args[4]
        process._target, process._args = unlike_ranks.run, (rank, process._target, *process._args)
        os.environ |= {RANK: str(rank), "PYTHONHASHSEED": HASH_SEEDS[rank]}
        try:
            start(process)
        finally:
            for name in (RANK, "PYTHONHASHSEED"):
                del os.environ[name]

    multiprocessing.process.BaseProcess.start = start_apart  # type: ignore[method-assign]


if RANK in os.environ:
    skew_clocks(int(os.environ[RANK]))
else:
    start_ranks_apart()
