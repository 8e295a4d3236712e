"""Checks the simulator against the real server: ``python -m eval.sim.validate --out DIR``.

Both replay the same small workloads: SGLang's server on the CPU over HTTP in real time, the simulator with
step times measured on that server. So that other work on the machine disturbs little, the server sleeps
before each step (SGLang's ``/slow_down``, part of the cost profile), and outputs are shortened. The step times
on top of the sleep are in proportion as probed, scaled by one factor for all policies so that the mean
latency is that of the replays. Tokens are not fitted.

A closed loop under pressure is chaotic: a step that takes a little longer lets another request be first, and
from there on other trajectories are cut. So the simulator's figure is the mean over draws of noisy step
times, and their spread, printed as ``+-``, says how far one replay of a server may be from it by chance.
``--repeat`` replays the first workload twice on the first policy's server for the same purpose.
Compared are the uncached tokens per request, and the order of the policies by P99 TTFT.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval import calibrate, counters, scale, trace, workload
from eval.closed_loop import ReplayConfig
from eval.policies import POLICIES, STOCK
from eval.records import RequestRecord
from eval.replay import replay
from eval.server import CPU_ENVIRONMENT, Server, without_our_plugin
from eval.sim.agreement import agreements
from eval.sim.baselines import baseline
from eval.sim.cost import Coefficients, MeasuredCost
from eval.sim.scheduler import Settings
from eval.sim.simulation import Run, Simulation
from eval.tiny_model import TinyModel, write_tiny_model
from eval.trace import Trajectory

TOKEN_SCALE = 1 / 8
"""Smaller, and one token more or less is 5 % of the P50."""
CHUNK_TOKENS = 128
"""1,024 at the same scale."""
MAX_CONTEXT = 6_000
TOLERANCE = 0.05
RAMP_S = 5.0
SLOWEST = (0.5, 16.0)
"""Range of the factor on probed step times."""
FIT_STEPS = 6
START_TIMEOUT_S = 600.0
DRAWS = 4
NOISE = 0.1
"""Standard deviation of the logarithm of a step's time."""


class NoisyCost(MeasuredCost):
    """Measured step times with seeded noise of mean 1: no two steps of a machine take the same time."""

    def __init__(self, use: Coefficients, seed: int) -> None:
        super().__init__(use)
        self._rng = np.random.default_rng(seed)

    def prefill(self, extends: Sequence[tuple[int, int]]) -> float:
        return super().prefill(extends) * float(self._noise(1)[0])

    def decode(self, batch: int, context_tokens: int, steps: int) -> np.ndarray:
        return super().decode(batch, context_tokens, steps) * self._noise(steps)

    def _noise(self, count: int) -> np.ndarray:
        return np.exp(NOISE * self._rng.standard_normal(count) - NOISE**2 / 2)


def coefficients(speed: calibrate.Speed, sleep_s: float = 0.0, factor: float = 1.0) -> Coefficients:
    """Step times from a probe: a prefill step of one token costs what a decode step does, the rest of a
    cached request is spent outside the scheduler (HTTP, tokenizer process, streaming), and what a cold prompt
    takes longer grows with its tokens. ``sleep_s``: of the server before each step, not in the probe.
    """
    step = min(speed.decode_step_s, speed.cached_s)
    return Coefficients(
        prefill_step_s=sleep_s + step * factor,
        prefill_token_s=max(0.0, speed.cold_s - speed.cached_s) / speed.prompt_tokens * factor,
        decode_step_s=sleep_s + (speed.decode_step_s - speed.decode_request_s) * factor,
        decode_request_s=speed.decode_request_s * factor,
        request_s=(speed.cached_s - step) * factor,
    )


def shorten_outputs(trajectory: Trajectory, factor: float) -> Trajectory:
    """Multiply every output; later prompts lose what the outputs before them lose."""
    turns = []
    lost = 0
    for turn in trajectory.turns:
        lost = 0 if turn.reset else lost
        output = max(1, round(turn.output_tokens * factor))
        turns.append(trace.replace_turn(turn, prompt_tokens=turn.prompt_tokens - lost, output_tokens=output))
        lost += turn.output_tokens - output
    return trace.replace(trajectory, turns=turns)


def slow_down(url: str, sleep_s: float) -> None:
    """Let a server sleep before each step. Raises OSError."""
    counters.post(url, "/slow_down", {"forward_sleep_time": sleep_s})


def mean_latency(requests: Sequence[RequestRecord]) -> float:
    """Seconds."""
    return float(np.mean([item.latency_s for item in requests if item.latency_s is not None]))


def p99_ttft(requests: Sequence[RequestRecord]) -> float:
    """Seconds."""
    return float(np.percentile([item.ttft_s for item in requests if item.ttft_s is not None], 99))


@dataclass
class Measured:
    """What one policy's server did: the requests of each workload, its speed and its settings."""

    requests: list[list[RequestRecord]]
    again: list[RequestRecord]
    speed: calibrate.Speed
    settings: Settings

    @property
    def all(self) -> list[RequestRecord]:
        return [item for run in self.requests for item in run]


class Validation:
    """Workloads, each measured and simulated under several policies.

    Args:
        workloads: one list of trajectories per seed.
        pool: KV tokens.
        sleep_s: of the server before each step.
    """

    def __init__(
        self,
        out: Path,
        workloads: Sequence[Sequence[Trajectory]],
        concurrency: int,
        pool: int,
        sleep_s: float,
        port: int | None,
    ) -> None:
        self._out, self._workloads, self._concurrency = out, workloads, concurrency
        self._pool, self._sleep_s, self._port = pool, sleep_s, port
        self._model = out / "model"
        write_tiny_model(self._model, TinyModel(layers=2, hidden=384, heads=1, kv_heads=1, head_dim=32))

    def measure(self, name: str, twice: bool) -> Measured:
        """Replay on a real server, the first workload ``twice`` if asked. Raises ServerFailed, RequestFailed."""
        policy = POLICIES[name]
        environment = {**CPU_ENVIRONMENT, **(without_our_plugin() if policy.module == STOCK else {})}
        arguments = [
            *("--device", "cpu", "--model-path", str(self._model), "--load-format", "dummy"),
            *("--max-total-tokens", str(self._pool), "--enable-cache-report", "--enable-metrics"),
            *("--sleep-on-idle", *policy.command(CHUNK_TOKENS)),
        ]
        log = self._out / f"{name}.log"
        with Server(policy.module, arguments, log, self._port, environment) as server:
            server.wait_healthy(START_TIMEOUT_S)
            speed = calibrate.probe(server.url, 1_000, 0)
            slow_down(server.url, self._sleep_s)
            config = ReplayConfig(
                url=server.url, concurrency=self._concurrency, hints=policy.hints, ramp_s=RAMP_S
            )
            runs = []
            for number, items in enumerate([*self._workloads, *self._workloads[: int(twice)]]):
                counters.flush_cache(server.url)
                path = self._out / f"{name}.{number}.jsonl"
                runs.append(replay(config, items, path, f"{name} {number}").requests)
            info = counters.server_info(server.url)
        settings = Settings(
            chunked_prefill_size=info["chunked_prefill_size"],
            max_prefill_tokens=info["max_prefill_tokens"],
            overlap=not info["disable_overlap_schedule"],
        )
        count = len(self._workloads)
        return Measured(runs[:count], runs[count] if twice else [], speed, settings)

    def simulate(self, name: str, measured: Measured, factor: float, draw: int = 0) -> list[RequestRecord]:
        """The same in virtual time, with step times ``factor`` times those probed."""
        label = name if POLICIES[name].config is None else f"{name}:chunk_tokens={CHUNK_TOKENS}"
        run = Run(
            baseline(label),
            self._concurrency,
            self._pool,
            ramp_s=RAMP_S,
            settings=measured.settings,
            check=True,
        )
        cost = NoisyCost(coefficients(measured.speed, self._sleep_s, factor), draw)
        return [item for items in self._workloads for item in Simulation(run, items, cost).run().requests]

    def fit(self, measured: dict[str, Measured]) -> float:
        """The factor at which the mean latency over all policies is the measured one (bisection)."""
        target = float(np.mean([mean_latency(found.all) for found in measured.values()]))
        low, high = SLOWEST
        for _ in range(FIT_STEPS):
            factor = (low * high) ** 0.5
            latency = [mean_latency(self.simulate(name, found, factor)) for name, found in measured.items()]
            if np.mean(latency) < target:
                low = factor
            else:
                high = factor
        return factor


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR")
    add("--policies", default="lru,lru+completion,rr", help=f"out of {', '.join(POLICIES)} (%(default)s)")
    add("--profile", default="swe-bench", choices=list(workload.PROFILES), help="(%(default)s)")
    add("--seeds", default="0", help="of the workloads (%(default)s)")
    add("--trajectories", type=int, default=110, help="of each workload (%(default)s)")
    add("--concurrency", type=int, default=36, help="(%(default)s)")
    add("--pressure", type=float, default=1.25, help="live demand as a multiple of the pool (%(default)s)")
    add("--gap-scale", type=float, default=0.3, help="(%(default)s)")
    add("--output-scale", type=float, default=0.1, help="factor on outputs, on top of that on tokens")
    add("--step-sleep", type=float, default=0.03, help="seconds that the server waits before each step")
    add("--port", type=int, help="of the server (default: a free one)")
    add("--repeat", action="store_true", help="one replay twice, to see what the server differs by itself")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    shrink = scale.Scale(
        tokens=TOKEN_SCALE,
        gaps=args.gap_scale,
        gap_cap_s=30,
        human_cap_s=30,
        max_turns=25,
        max_context=MAX_CONTEXT,
    )
    workloads = []
    for seed in map(int, args.seeds.split(",")):
        generated = workload.generate(args.profile, args.trajectories, seed)
        shorter = (shorten_outputs(item, args.output_scale) for item in generated)
        items = list(scale.apply(shorter, shrink))
        workloads.append(scale.longest_waiting_first(items, args.concurrency // 2))
    demand = scale.expected_demand([item for items in workloads for item in items], args.concurrency)
    pool = max(demand.pool_for(args.pressure), demand.peak + 256)
    print(f"{demand.describe()}\npool {pool:,} tokens", file=sys.stderr)
    validation = Validation(args.out, workloads, args.concurrency, pool, args.step_sleep, args.port)
    names = args.policies.split(",")
    measured = {name: validation.measure(name, args.repeat and name == names[0]) for name in names}
    factor = validation.fit(measured)
    simulated = {
        name: [validation.simulate(name, found, factor, draw) for draw in range(DRAWS)]
        for name, found in measured.items()
    }
    return _report(args.out, measured, simulated, factor)


def _report(
    out: Path, measured: dict[str, Measured], simulated: dict[str, list[list[RequestRecord]]], factor: float
) -> int:
    report: dict[str, Any] = {"factor": factor, "policies": {}}
    good = True
    for name, found in measured.items():
        if found.again:
            itself = agreements(found.requests[0], [found.again])
            report["repeat"] = {"policy": name, "uncached": [asdict(item) for item in itself]}
            for item in itself:
                print(f"{item.line(name)}  (the server twice)")
        compared = agreements(found.all, simulated[name])
        ttft = {
            "server": p99_ttft(found.all),
            "simulator": float(np.mean([p99_ttft(requests) for requests in simulated[name]])),
        }
        for item in compared:
            good &= item.error <= TOLERANCE
            print(item.line(name))
        print(f"{name:16s} P99 TTFT s     {ttft['server']:8.3f} {ttft['simulator']:8.3f}")
        report["policies"][name] = {
            "uncached": [asdict(item) for item in compared],
            "p99_ttft_s": ttft,
            "speed": asdict(found.speed),
        }
    orders = {
        side: sorted(measured, key=lambda name: report["policies"][name]["p99_ttft_s"][side])
        for side in ("server", "simulator")
    }
    print(f"step times without the sleep: {factor:.2f} times those probed")
    print("by P99 TTFT: " + "; ".join(f"{side} {' < '.join(order)}" for side, order in orders.items()))
    (out / "validation.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if good and orders["server"] == orders["simulator"] else 1


if __name__ == "__main__":
    sys.exit(main())
