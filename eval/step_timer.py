"""An SGLang plugin for measuring: the scheduler's CPU time between two forward passes.

Not installed with the package: `installed_in` makes a folder that, on PYTHONPATH, is found as an entry point.
Everything that the scheduler's main thread does but the forward pass itself counts: receiving requests, the
queue, admission, allocation and eviction, results, answers.

Target: SGLang 0.5.23, `sglang.srt.managers.scheduler.Scheduler.run_batch`, AROUND.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from eval.plugin import plugin_in

NAME = "agentcache_step_timer"
OUTPUT = "AGENTCACHE_STEP_TIMES"
"""Names the file that receives a line for each step."""
BUFFERED = 20


class Step(NamedTuple):
    """One scheduler step. Seconds of the main thread's CPU time, on Linux."""

    waiting: int
    """Requests left in the queue."""
    scheduling_s: float
    """Since the last forward pass."""


def installed_in(folder: Path) -> dict[str, str]:
    """Make the entry point in this folder; returns the environment of a server that loads it."""
    return plugin_in(folder, NAME, "eval.step_timer:activate") | {OUTPUT: str(folder / "steps.jsonl")}


def read(path: Path, skip: int = 0) -> Iterator[Step]:
    """The steps written so far but the first `skip`; the last few may still be in the scheduler's buffer."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in islice(lines, skip, None):
            yield Step(*json.loads(line))


def activate() -> None:
    """Called by SGLang's `load_plugins` in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.run_batch", _Timer().around, HookType.AROUND
    )


class _Timer:
    def __init__(self) -> None:
        self._since = time.thread_time()
        self._steps: list[Step] = []

    def around(self, run_batch: Callable[..., Any], scheduler: Any, *args: Any, **options: Any) -> Any:
        spent = time.thread_time() - self._since
        self._steps.append(Step(len(scheduler.waiting_queue), spent))
        if len(self._steps) >= BUFFERED:
            with open(os.environ[OUTPUT], "a") as file:
                file.writelines(json.dumps(step) + "\n" for step in self._steps)
            self._steps.clear()
        result = run_batch(scheduler, *args, **options)
        self._since = time.thread_time()
        return result
