"""Checks the simulator against the real server: ``python -m eval.sim.validate --out DIR``.

Both replay the same small workload: SGLang's server on the CPU over HTTP in real time, the simulator with
step times measured on that server. These are in proportion as probed before the replay, scaled by one factor
so that the mean latency is that of the replay (a machine that does other work as well is slower than its
probe). Tokens are not fitted. Compares the uncached tokens per request, and the order of the policies by P99
TTFT.
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

from eval import calibrate, counters, scale, workload
from eval.closed_loop import ReplayConfig
from eval.policies import POLICIES, STOCK
from eval.records import RequestRecord
from eval.replay import replay
from eval.server import CPU_ENVIRONMENT, Server, without_our_plugin
from eval.sim.baselines import baseline
from eval.sim.cost import Coefficients, MeasuredCost
from eval.sim.simulation import Run, Simulation
from eval.tiny_model import TinyModel, write_tiny_model
from eval.trace import Trajectory

TOKEN_SCALE = 1 / 16
CHUNK_TOKENS = 64
"""1,024 at the same scale."""
TOLERANCE = 0.05
RAMP_S = 5.0
SLOWEST = (0.25, 32.0)
"""Range of the factor on probed step times."""
FIT_STEPS = 10


@dataclass(frozen=True)
class Agreement:
    """One statistic of uncached tokens per request, measured and simulated."""

    statistic: str
    server: float
    simulator: float

    @property
    def error(self) -> float:
        """Relative to the server."""
        return abs(self.simulator - self.server) / max(self.server, 1.0)


def agreements(server: Sequence[RequestRecord], simulated: Sequence[RequestRecord]) -> list[Agreement]:
    """P50, P99 and mean. Raises ValueError if the requests are not the same."""
    keys = [
        sorted((item.trajectory_id, item.turn, item.prompt_tokens) for item in run)
        for run in (server, simulated)
    ]
    if keys[0] != keys[1]:
        raise ValueError(f"not the same requests: {len(server)} on the server, {len(simulated)} simulated")
    ours, theirs = ([item.uncached_tokens for item in run] for run in (simulated, server))
    return [
        Agreement("p50", float(np.percentile(theirs, 50)), float(np.percentile(ours, 50))),
        Agreement("p99", float(np.percentile(theirs, 99)), float(np.percentile(ours, 99))),
        Agreement("mean", float(np.mean(theirs)), float(np.mean(ours))),
    ]


def coefficients(speed: calibrate.Speed, factor: float = 1.0) -> Coefficients:
    """Step times from a probe: a cached prompt costs the fixed part, the rest grows with its tokens."""
    per_token = max(0.0, speed.cold_s - speed.cached_s) / speed.prompt_tokens
    # About half of the fixed part is spent outside the scheduler (HTTP, tokenizer process, streaming).
    fixed = speed.cached_s / 2
    return Coefficients(
        prefill_step_s=fixed * factor,
        prefill_token_s=per_token * factor,
        decode_step_s=speed.decode_step_s * factor,
        request_s=fixed * factor,
    )


def mean_latency(requests: Sequence[RequestRecord]) -> float:
    """Seconds."""
    return float(np.mean([item.latency_s for item in requests if item.latency_s is not None]))


def p99_ttft(requests: Sequence[RequestRecord]) -> float:
    """Seconds."""
    return float(np.percentile([item.ttft_s for item in requests if item.ttft_s is not None], 99))


class Validation:
    """One workload, measured and simulated under several policies."""

    def __init__(self, out: Path, items: Sequence[Trajectory], concurrency: int, pool: int) -> None:
        self._out, self._items, self._concurrency, self._pool = out, items, concurrency, pool
        self._model = out / "model"
        write_tiny_model(self._model, TinyModel(layers=2, hidden=384, heads=1, kv_heads=1, head_dim=32))

    def measure(self, name: str) -> tuple[list[RequestRecord], calibrate.Speed]:
        """Replay on a real server. Raises ServerFailed, RequestFailed."""
        policy = POLICIES[name]
        environment = {**CPU_ENVIRONMENT, **(without_our_plugin() if policy.module == STOCK else {})}
        arguments = [
            *("--device", "cpu", "--model-path", str(self._model), "--load-format", "dummy"),
            *("--max-total-tokens", str(self._pool), "--enable-cache-report", "--enable-metrics"),
            *policy.command(CHUNK_TOKENS),
        ]
        with Server(policy.module, arguments, self._out / f"{name}.log", environment=environment) as server:
            server.wait_healthy()
            speed = calibrate.probe(server.url, 1_000, 0)
            counters.flush_cache(server.url)
            config = ReplayConfig(
                url=server.url, concurrency=self._concurrency, hints=policy.hints, ramp_s=RAMP_S
            )
            outcome = replay(config, self._items, self._out / f"{name}.jsonl", name)
        return outcome.requests, speed

    def simulate(self, name: str, speed: calibrate.Speed, factor: float) -> list[RequestRecord]:
        """The same in virtual time, with step times ``factor`` times those probed."""
        label = name if POLICIES[name].config is None else f"{name}:chunk_tokens={CHUNK_TOKENS}"
        run = Run(baseline(label), self._concurrency, self._pool, ramp_s=RAMP_S, check=True)
        return Simulation(run, self._items, MeasuredCost(coefficients(speed, factor))).run().requests

    def fit(self, name: str, speed: calibrate.Speed, latency_s: float) -> tuple[float, list[RequestRecord]]:
        """The factor at which the simulated mean latency is ``latency_s``, and that simulation (bisection)."""
        low, high = SLOWEST
        for _ in range(FIT_STEPS):
            factor = (low * high) ** 0.5
            requests = self.simulate(name, speed, factor)
            if mean_latency(requests) < latency_s:
                low = factor
            else:
                high = factor
        return factor, requests


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR")
    add("--policies", default="lru,lru+completion,rr", help=f"out of {', '.join(POLICIES)} (%(default)s)")
    add("--profile", default="swe-bench", choices=list(workload.PROFILES), help="(%(default)s)")
    add("--trajectories", type=int, default=30, help="(%(default)s)")
    add("--concurrency", type=int, default=12, help="(%(default)s)")
    add("--pressure", type=float, default=1.25, help="live demand as a multiple of the pool (%(default)s)")
    add("--gap-scale", type=float, default=0.15, help="(%(default)s)")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    shrink = scale.Scale(
        tokens=TOKEN_SCALE, gaps=args.gap_scale, gap_cap_s=30, human_cap_s=30, max_turns=25, max_context=3_000
    )
    items = list(scale.apply(workload.generate(args.profile, args.trajectories, 0), shrink))
    demand = scale.expected_demand(items, args.concurrency)
    pool = max(demand.pool_for(args.pressure), demand.peak + 256)
    print(f"{demand.describe()}\npool {pool:,} tokens", file=sys.stderr)
    validation = Validation(args.out, items, args.concurrency, pool)
    report: dict[str, Any] = {}
    orders: list[tuple[float, float, str]] = []
    good = True
    for name in args.policies.split(","):
        server, speed = validation.measure(name)
        factor, simulated = validation.fit(name, speed, mean_latency(server))
        found = agreements(server, simulated)
        orders.append((p99_ttft(server), p99_ttft(simulated), name))
        for item in found:
            good &= item.error <= TOLERANCE
            values = f"{item.server:8.1f} {item.simulator:8.1f} {item.error:7.2%}"
            print(f"{name:16s} uncached {item.statistic:5s} {values}")
        print(f"{name:16s} P99 TTFT s     {orders[-1][0]:8.3f} {orders[-1][1]:8.3f}")
        print(f"{name:16s} steps took {factor:.2f} times as long as probed", flush=True)
        report[name] = {
            "factor": factor,
            "uncached": [asdict(item) for item in found],
            "p99_ttft_s": {"server": orders[-1][0], "simulator": orders[-1][1]},
            "speed": asdict(speed),
        }
    real, virtual = ([name for *_, name in sorted(orders, key=lambda item: item[place])] for place in (0, 1))
    print(f"by P99 TTFT: server {' < '.join(real)}; simulator {' < '.join(virtual)}")
    (args.out / "validation.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if good and real == virtual else 1


if __name__ == "__main__":
    sys.exit(main())
