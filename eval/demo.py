"""Runs the real SGLang server on the CPU once per policy, on the same agent trajectories.

Writes OUT/summary.json (one row per policy), OUT/tails.png, OUT/table.txt, OUT/run.json (what was run, the
scale, the measured pressure) and OUT/POLICY/ with the raw requests and the server's log. Ctrl-C keeps what
is done so far.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from eval import calibrate, counters, dataset, plot, regime, summary
from eval.client import RequestFailed
from eval.closed_loop import Outcome, ReplayConfig
from eval.counters import Counters
from eval.pd import Cluster
from eval.plan import PRESETS, Plan, make_plan
from eval.policies import POLICIES, STOCK, Policy
from eval.records import RequestRecord
from eval.replay import add_scale_arguments, replay
from eval.server import CPU_ENVIRONMENT, Server, ServerFailed, without_our_plugin
from eval.tiny_model import TinyModel, write_tiny_model

DEFAULT_POLICIES = ["lru", "lru+completion", "rr", "rr-leaf"]
RAMP_S = 5.0
"""The first agents do not all start at once: a cold burst would be the same tail for every policy."""

MODEL = TinyModel(layers=2, hidden=384, heads=1, kv_heads=1, head_dim=32)
"""Wide layers and little attention: SGLang's CPU attention recomputes the cached part of a prompt, and
with more heads that would hide what a cache hit saves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="results (%(default)s)")
    add("--policies", nargs="+", choices=list(POLICIES), default=DEFAULT_POLICIES, help="in this order")
    add("--workload", choices=list(PRESETS), default="coding-agent", help="what the agents do (%(default)s)")
    add(
        "--data",
        metavar="DIR",
        help=f"recorded traces; default ${dataset.ENVIRONMENT}, else ../shared/data, else the generator",
    )
    add(
        "--generated",
        action="store_true",
        help="use the workload generator even if recorded traces are there",
    )
    add("--trajectories", type=int, help="how many (default: the workload's preset)")
    add("--concurrency", type=int, default=40, help="live agents (%(default)s)")
    add(
        "--pressure",
        type=float,
        default=1.35,
        help="expected live KV as a multiple of the pool (%(default)s)",
    )
    add("--pool-tokens", type=int, help="size of the KV pool instead of one derived from --pressure")
    add("--page-size", type=int, default=1, help="of the KV pool (%(default)s)")
    add("--seed", type=int, default=0, help="of the sample, the gaps and the token ids (%(default)s)")
    add("--model-path", type=Path, help="a model directory instead of the tiny one that is made")
    add("--port", type=int, help="of the server (default: a free one)")
    # No defaults: what is not given comes from the workload's preset.
    add_scale_arguments(parser)


class Demo:
    """Runs policies one after the other and keeps OUT up to date after each."""

    router = False
    """Whether clients speak to a router."""

    def __init__(self, args: argparse.Namespace, plan: Plan, model: Path) -> None:
        self._args, self._plan, self._model = args, plan, model
        self.rows: list[summary.Row] = []
        self._requests: dict[str, list[RequestRecord]] = {}
        self._notes: dict[str, Any] = {}

    def run(self, name: str) -> bool:
        """Start the policy's server, replay, stop it. Returns whether the replay was finished.

        Raises ServerFailed if the server does not start.
        """
        args, policy = self._args, POLICIES[name]
        folder: Path = args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        with self.serving(policy, folder) as server:
            print(f"{name}: starting {policy.module}", file=sys.stderr)
            started_s = server.wait_healthy()
            speed = calibrate.probe(server.url, round(self._plan.demand.mean_context), args.seed)
            counters.flush_cache(server.cache_url)
            if self._plan.fitted is None:
                self._plan = self._plan.fit_gaps(speed)
                print(self._plan.describe(), file=sys.stderr)
            plan = self._plan
            before = Counters.read(server.cache_url)
            config = ReplayConfig(
                url=server.url,
                concurrency=args.concurrency,
                seed=args.seed,
                hints=policy.hints,
                tool_calls=not policy.blind,
                router=self.router,
                ramp_s=RAMP_S,
            )
            outcome = replay(config, plan.trajectories, folder / "requests.jsonl", name)
            counted = Counters.read(server.cache_url) - before
            states = counters.agentcache_states(counters.server_info(server.cache_url))
        self._keep(name, outcome, counted)
        self._notes[name] = {
            "command": server.command[1:],
            "start_s": round(started_s, 1),
            "speed": dataclasses.asdict(speed),
            "replay_s": round(outcome.wall_s, 1),
            "load_average": os.getloadavg()[0],
            "pressure": (
                regime.measure(outcome.requests, plan.pool_tokens).as_dict() if outcome.requests else None
            ),
            "agentcache": states,
        }
        self.write()
        return outcome.finished

    def serving(self, policy: Policy, folder: Path) -> Server | Cluster:
        """What serves under this policy, to be started."""
        return Server(
            policy.module,
            [*self.arguments(), *policy.command(self._plan.chunk_tokens)],
            folder / "server.log",
            self._args.port,
            {**CPU_ENVIRONMENT, **self.environment(policy)},
        )

    def arguments(self) -> list[str]:
        """Server arguments that have nothing to do with the policy."""
        return [
            *("--device", "cpu", "--model-path", str(self._model)),
            *("--max-total-tokens", str(self._plan.pool_tokens), "--page-size", str(self._args.page_size)),
            *("--enable-cache-report", "--enable-metrics", "--sleep-on-idle"),
            *(() if self._args.model_path else ("--load-format", "dummy")),
        ]

    def environment(self, policy: Policy) -> dict[str, str]:
        """Variables that the policy's servers get."""
        return without_our_plugin() if policy.module == STOCK else {}

    def _keep(self, name: str, outcome: Outcome, counted: Counters) -> None:
        self._requests[name] = outcome.requests
        self.rows.append(
            summary.row(
                outcome.requests,
                outcome.session_s,
                policy=name,
                workload=self._args.workload,
                concurrency=self._args.concurrency,
                seed=self._args.seed,
                counters=counted,
                partial=not outcome.finished,
            )
        )

    def write(self) -> None:
        """Write everything that OUT holds about the runs so far."""
        out, plan = self._args.out, self._plan
        summary.write(self.rows, out / "summary.json")
        (out / "table.txt").write_text(f"{plan.describe()}\n\n{summary.table(self.rows)}\n")
        notes = {
            "plan": plan.describe().splitlines(),
            "pool_tokens": plan.pool_tokens,
            "chunk_tokens": plan.chunk_tokens,
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "order": list(self._notes),
            "policies": self._notes,
        }
        (out / "run.json").write_text(json.dumps(notes, indent=1) + "\n")
        title = (
            f"{self._args.workload}, {self._args.concurrency} live agents, pool {plan.pool_tokens:,} tokens"
        )
        plot.plot_tails(self._requests, out / "tails.png", title)

    def report(self) -> str:
        """The table, below what was run and how much pressure there was."""
        pressure = [
            f"{name}: {regime.measure(requests, self._plan.pool_tokens).describe()}"
            for name, requests in self._requests.items()
            if requests
        ]
        return "\n".join([self._plan.describe(), *pressure, "", summary.table(self.rows)])


def main(args: argparse.Namespace, kind: type[Demo] = Demo) -> int:
    """Run the policies with this kind of server; returns the exit code."""
    start = time.perf_counter()
    try:
        plan = make_plan(args)
        args.out.mkdir(parents=True, exist_ok=True)
        model = args.model_path or args.out / "model"
        if not args.model_path:
            write_tiny_model(model, MODEL)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if plan.fitted is not None:
        print(plan.describe(), file=sys.stderr)
    demo, code = kind(args, plan, model), 0
    # A plain kill ends the demo as Ctrl-C does: results are kept and no server is left behind.
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in args.policies:
            try:
                if not demo.run(name):
                    code = 130
                    break
            except (ServerFailed, RequestFailed, OSError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                code = 1
    except KeyboardInterrupt:
        code = 130
    finally:
        signal.signal(signal.SIGTERM, former)
    if demo.rows:
        print(demo.report())
    print(f"{time.perf_counter() - start:.0f} s; results in {args.out}", file=sys.stderr)
    return code
