"""Many runs: every policy at every schedule, concurrency and seed, over several processes, interruptible."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval import records, regime, summary
from eval.counters import Counters
from eval.records import RequestRecord
from eval.sim.cost import CostModel
from eval.sim.names import file_stem
from eval.sim.scheduler import SimulationError
from eval.sim.simulation import Outcome, Run, Simulation
from eval.summary import Row
from eval.trace import Trajectory

PROGRESS_REQUESTS = 50
"""A worker reports its progress in portions of this many requests."""


class Stopped(BaseException):
    """The sweep is being interrupted; like KeyboardInterrupt not an Exception."""


@dataclass(frozen=True)
class Sweep:
    """What to run. ``trajectories`` by seed: each seed has its own sample, order and drawn gaps."""

    runs: Sequence[Run]
    trajectories: Mapping[int, Sequence[Trajectory]]
    cost: CostModel
    workload: str
    out: Path

    def requests(self) -> int:
        """How many there will be in all runs."""
        sizes = {seed: sum(len(item.turns) for item in items) for seed, items in self.trajectories.items()}
        return sum(sizes[run.seed] for run in self.runs)


def _stem(run: Run) -> str:
    return file_stem(run.baseline.label, run.settings.schedule, run.admission, run.concurrency, run.seed)


def row(run: Run, outcome: Outcome, cost: CostModel, workload: str) -> Row:
    """One run as a row: what `eval.summary` defines, and what only a simulator can say."""
    served = [record for record in outcome.requests if record.error is None]
    result = summary.row(
        outcome.requests,
        outcome.session_s,
        policy=run.baseline.label,
        workload=workload,
        concurrency=run.concurrency,
        seed=run.seed,
        counters=Counters(evicted=outcome.evicted_tokens, released=outcome.released_tokens),
        schedule=run.settings.schedule,
        admission=run.admission,
        partial=not outcome.finished,
    )
    result |= {
        "goodput_tok_s": goodput(served),
        "makespan_s": round(outcome.makespan_s, 6),
        "ttft_first_s": _ttft(served, first=True),
        "ttft_return_s": _ttft(served, first=False),
        "uncached_return_tokens": summary.distribution(
            [record.uncached_tokens for record in served if record.turn]
        ),
        "latency_s": summary.distribution(
            [record.latency_s for record in served if record.latency_s is not None]
        ),
        "prefill_tokens": outcome.prefill_tokens,
        "retractions": outcome.retractions,
        "sessions": len(outcome.session_s),
        "capacity_tokens": run.capacity_tokens,
        "cost": cost.name,
        "door": outcome.door,
    }
    if outcome.requests:
        result["regime"] = regime.measure(outcome.requests, run.capacity_tokens).as_dict()
    return result


def goodput(served: Sequence[RequestRecord]) -> float | None:
    """Useful tokens a second: new prompt tokens and output, whatever was prefilled again not counted.

    Measured while the loop is full, that is until the last trajectory has started; after that the load ebbs,
    and a single long gap would decide. None if there was no such time.
    """
    full_s = max((record.sent_s for record in served if record.turn == 0), default=0.0)
    useful = sum(
        record.prompt_tokens - record.history_tokens + record.output_tokens
        for record in served
        if record.sent_s + (record.latency_s or 0.0) <= full_s
    )
    return round(useful / full_s, 3) if full_s else None


def _ttft(served: Sequence[RequestRecord], first: bool) -> dict[str, float | None]:
    chosen = [record.ttft_s for record in served if (record.turn == 0) is first and record.ttft_s is not None]
    return summary.distribution(chosen)


def simulate(sweep: Sweep, index: int, progress: Any, stop: Any) -> Row:
    """One run: its requests to ``OUT/requests``, its memory pressure to ``OUT/pressure``; returns its row.

    One that cannot go on gives a partial row with the reason in ``failed``, and does not stop the others.
    """
    run = sweep.runs[index]
    counted = 0

    def on_request(_: RequestRecord) -> None:
        nonlocal counted
        counted += 1
        if counted % PROGRESS_REQUESTS == 0:
            with progress.get_lock():
                progress.value += PROGRESS_REQUESTS
        if stop.value:
            raise Stopped

    simulation = Simulation(run, sweep.trajectories[run.seed], sweep.cost, on_request)
    failed: dict[str, str] = {}
    try:
        simulation.run()
    except (Stopped, KeyboardInterrupt):
        stop.value = 1
    except SimulationError as error:
        failed["failed"] = str(error)
    outcome = simulation.outcome
    with progress.get_lock():
        progress.value += counted % PROGRESS_REQUESTS
    stem = _stem(run)
    with (sweep.out / "requests" / f"{stem}.jsonl").open("wb") as file:
        file.writelines(records.encode(record) for record in outcome.requests)
    (sweep.out / "pressure" / f"{stem}.json").write_text(json.dumps(outcome.pressure) + "\n")
    return row(run, outcome, sweep.cost, sweep.workload) | failed


# A forked worker finds the sweep, the counter and the stop flag here: trajectories do not go through
# pipes.
_shared: tuple[Sweep, Any, Any] | None = None


def _in_worker(index: int) -> Row | None:
    assert _shared is not None
    sweep, progress, stop = _shared
    return None if stop.value else simulate(sweep, index, progress, stop)


def _ignore_interrupt() -> None:
    # Ctrl-C reaches the whole process group; the parent tells the workers through the stop flag.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_all(sweep: Sweep, jobs: int) -> Iterator[list[Row]]:
    """Run everything; yields the rows so far, in the order of the runs, whenever there is a new one.

    After Ctrl-C the runs in progress give partial rows and no others start.
    """
    global _shared
    for folder in ("requests", "pressure"):
        (sweep.out / folder).mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    progress, stop = context.Value("q", 0), context.Value("b", 0)
    _shared = sweep, progress, stop
    done: dict[int, Row] = {}
    with tqdm(total=sweep.requests(), unit="req", unit_scale=True, file=sys.stderr, smoothing=0.1) as bar:
        if jobs == 1:
            for index in range(len(sweep.runs)):
                bar.set_description(_stem(sweep.runs[index]))
                done[index] = simulate(sweep, index, _Bar(bar), stop)
                yield [done[key] for key in sorted(done)]
                if stop.value:
                    return
            return
        with concurrent.futures.ProcessPoolExecutor(jobs, context, _ignore_interrupt) as pool:
            pending = {pool.submit(_in_worker, index): index for index in range(len(sweep.runs))}
            while pending:
                try:
                    ready, _ = concurrent.futures.wait(
                        pending, timeout=0.3, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    bar.update(progress.value - bar.n)
                except KeyboardInterrupt:
                    stop.value = 1
                    continue
                for future in ready:
                    index = pending.pop(future)
                    result = future.result()
                    if result is not None:
                        done[index] = result
                if ready:
                    yield [done[key] for key in sorted(done)]


class _Bar:
    """The progress counter of a run in this process: straight to the bar."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    @property
    def value(self) -> int:
        return int(self._bar.n)

    @value.setter
    def value(self, count: int) -> None:
        self._bar.update(count - self._bar.n)

    def get_lock(self) -> Any:
        return self._bar.get_lock()


def describe(sweep: Sweep, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the report needs to know about a sweep, JSON-ready; the same for two equal sweeps."""
    first = sweep.runs[0]
    return {
        "arguments": dict(arguments),
        "workload": sweep.workload,
        "cost": sweep.cost.name,
        "capacity_tokens": first.capacity_tokens,
        "settings": dataclasses.asdict(first.settings),
        "decode_workers": first.decode_workers,
        "trajectories": {str(seed): len(items) for seed, items in sweep.trajectories.items()},
    }
