"""Independent fits side by side, one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def run_each(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run ``tasks`` on the CPUs this process may use; results in their order, the first error is raised.

    scikit-learn's own threads split each small step of a fit and wait for each other in a busy loop, which on
    a machine shared with others is many times slower than one thread per fit.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    def alone(task: Callable[[], Result]) -> Result:
        with threadpool_limits(limits=1, user_api="openmp"):  # OpenMP keeps the limit per calling thread
            return task()

    with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(alone, tasks))
