"""Simulates agents against SGLang's real cache and scheduling rules in virtual time, to compare policies.

Every combination of --policies, --schedule, --concurrency and --seed is one run. Trajectories are replayed in
closed loop with their recorded gaps; a run's times come from a cost model of --model on --gpu, or from a
profile measured on a server (--cost). Writes to --out: results.json (one row a run), sweep.json (what was
run), requests/*.jsonl, pressure/*.json. Ctrl-C keeps what is done. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eval import dataset, scale, summary
from eval.replay import add_scale_arguments, scale_from
from eval.sim import baselines
from eval.sim.cost import GPUS, MODELS, CostModel, MeasuredCost, RooflineCost, roofline
from eval.sim.schedules import SCHEDULES, Schedule
from eval.trace import Trajectory, read_traces

if TYPE_CHECKING:
    from eval.sim.sweep import Sweep

DEFAULT_POLICIES = "lru,lru+completion,rr,oracle"
ADMISSIONS = ("off", "auto")
HUMAN_GAP_CAP_S = 600.0
"""Nobody keeps KV in mind for longer; without a cap one overnight pause decides a run's makespan."""
RESERVE_TOKENS = 64
NETWORK_BYTES_S = 45e9
"""PD: KV transfer between servers (400 Gb/s links, 90 %)."""


def _numbers(text: str, flag: str, minimum: int) -> list[int]:
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < minimum:
        raise ValueError(f"{flag}: integers of at least {minimum}, separated by commas; got {text!r}")
    return values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--trace", nargs="+", metavar="FILE", help="trajectories, .jsonl or .jsonl.gz")
    add(
        "--workload",
        help=f"instead of --trace: {', '.join(dataset.RECORDED)}; with it: the label of the rows",
    )
    add(
        "--data",
        metavar="DIR",
        help=f"folder of recorded workloads (else ${dataset.ENVIRONMENT}, else the generator)",
    )
    add("--out", required=True, type=Path, metavar="DIR", help="gets results.json and what it is made of")
    add(
        "--policies",
        default=DEFAULT_POLICIES,
        help=f"separated by commas, options after a colon (rr:tiers=on): {', '.join(baselines.names())}",
    )
    add("--schedule", default="fcfs", help=f"--schedule-policy, separated by commas: {', '.join(SCHEDULES)}")
    add(
        "--admission",
        default="off",
        help=f"trajectory admission, separated by commas: {', '.join(ADMISSIONS)}",
    )
    add("--concurrency", default="8,16,32", help="live agents, separated by commas (%(default)s)")
    add("--seed", default="0", help="of sample, order and drawn gaps, separated by commas (%(default)s)")
    add("--limit-trajectories", type=int, metavar="N", help="a sample of N, taken evenly from the sources")
    add(
        "--capacity-tokens", type=int, metavar="N", help="KV pool; else what the GPU holds beside the weights"
    )
    add("--model", default="qwen3-8b", help=f"{', '.join(MODELS)} (%(default)s)")
    add("--gpu", default="h200", help=f"{', '.join(GPUS)} (%(default)s)")
    add("--cost", metavar="FILE", help="JSON of measured coefficients instead of --model and --gpu")
    add(
        "--decode-workers",
        type=int,
        default=0,
        metavar="N",
        help="PD: one prefill server and N decode servers",
    )
    add(
        "--completion",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="clients say that a trajectory is over (to caches that can hear it)",
    )
    add(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="clients ask for N; default: the recorded output exactly",
    )
    add("--chunked-prefill-size", type=int, default=8192, metavar="N", help="(%(default)s)")
    add("--ramp", type=float, metavar="S", help="seconds over which the first agents start (1 s each)")
    add("--jobs", type=int, default=1, help="processes (%(default)s)")
    add("--check", action="store_true", help="verify conservation of memory and requests at every step")
    add_scale_arguments(parser)


def cost_model(args: argparse.Namespace) -> CostModel:
    """The cost model that the arguments name. Raises ValueError, OSError."""
    return MeasuredCost.read(args.cost) if args.cost else roofline(args.model, args.gpu)


def capacity(args: argparse.Namespace, cost: CostModel) -> int:
    """KV pool in tokens. Raises ValueError."""
    if args.capacity_tokens is not None:
        if args.capacity_tokens < 1:
            raise ValueError(f"--capacity-tokens: at least 1, got {args.capacity_tokens}")
        return int(args.capacity_tokens)
    if not isinstance(cost, RooflineCost):
        raise ValueError("--capacity-tokens: required with --cost")
    return cost.capacity_tokens()


def load(args: argparse.Namespace, seed: int) -> list[Trajectory]:
    """The trajectories of one seed, every gap known, not scaled. Raises ValueError, OSError."""
    limit = args.limit_trajectories
    if args.trace:
        return dataset.choose(read_traces(*args.trace), limit, seed)
    if not args.workload:
        raise ValueError("--trace or --workload: one of them is needed")
    return dataset.load(args.workload, limit or 200, seed, dataset.data_folder(args.data))[0]


def _longest_context(args: argparse.Namespace, capacity_tokens: int) -> int:
    # PrefillAdder admits nothing that, with what it may generate, would not leave a token free.
    reserve = RESERVE_TOKENS + (args.max_new_tokens or 0)
    longest = capacity_tokens - reserve
    if not args.cost:
        longest = min(longest, MODELS[args.model].window)
    if args.max_context is not None:
        longest = min(longest, args.max_context)
    if longest < 1:
        raise ValueError(f"--capacity-tokens: above {reserve}, got {capacity_tokens}")
    return longest


def plan(args: argparse.Namespace) -> Sweep:
    """All runs that the arguments ask for. Raises ValueError naming the flag and what is allowed, OSError."""
    from eval.sim.scheduler import Settings
    from eval.sim.simulation import Run
    from eval.sim.sweep import Sweep
    from eval.sim.world import config_for

    cost = cost_model(args)
    pool = capacity(args, cost)
    policies = [baselines.baseline(name) for name in args.policies.split(",")]
    for policy in policies:
        if not policy.stock:
            config_for(policy, baselines.Facts())
    admissions = args.admission.split(",")
    for name in admissions:
        if name not in ADMISSIONS:
            raise ValueError(f"--admission: allowed are {', '.join(ADMISSIONS)}; got {name!r}")
    if args.decode_workers and admissions != ["off"]:
        raise ValueError("--admission auto: not with --decode-workers, where servers have no door")
    for policy in policies:
        if policy.stock and admissions != ["off"]:
            raise ValueError(f"--admission auto: needs this package's cache, which {policy.label} is without")
    schedules = args.schedule.split(",")
    for name in schedules:
        try:
            Schedule.parse(name)
        except ValueError as error:
            raise ValueError(f"--schedule: {error}") from None
    for flag, value, minimum in (
        ("--jobs", args.jobs, 1),
        ("--decode-workers", args.decode_workers, 0),
        ("--chunked-prefill-size", args.chunked_prefill_size, 1),
        ("--max-new-tokens", args.max_new_tokens, 1),
        ("--limit-trajectories", args.limit_trajectories, 1),
    ):
        if value is not None and value < minimum:
            raise ValueError(f"{flag}: at least {minimum}, got {value}")
    concurrencies = _numbers(args.concurrency, "--concurrency", 1)
    seeds = _numbers(args.seed, "--seed", 0)
    args.max_context = _longest_context(args, pool)
    shrink = scale_from(args, scale.Scale(human_cap_s=HUMAN_GAP_CAP_S))
    trajectories = {seed: list(scale.apply(load(args, seed), shrink)) for seed in seeds}
    for seed, items in trajectories.items():
        random.Random(f"order:{seed}").shuffle(items)
        if not items:
            raise ValueError(f"no trajectory is left to simulate (seed {seed}); allow longer contexts")
    transfer = MODELS[args.model].kv_bytes / NETWORK_BYTES_S if not args.cost else 0.0
    runs = [
        Run(
            baseline=policy,
            concurrency=concurrency,
            capacity_tokens=pool,
            seed=seed,
            completion=args.completion,
            ramp_s=float(concurrency) if args.ramp is None else args.ramp,
            max_new_tokens=args.max_new_tokens,
            decode_workers=args.decode_workers,
            decode_capacity_tokens=pool,
            transfer_s_per_token=transfer,
            admission=admission,
            settings=Settings(schedule, args.chunked_prefill_size, max(16_384, args.chunked_prefill_size)),
            check=args.check,
        )
        # Seed by seed: what an interruption leaves is a whole sweep of fewer seeds.
        for seed in seeds
        for concurrency in concurrencies
        for schedule in schedules
        for admission in admissions
        for policy in policies
    ]
    label = args.workload or ",".join(
        Path(name).name.removesuffix(".gz").removesuffix(".jsonl") for name in args.trace
    )
    print(f"{cost.name}, pool {pool:,} tokens; scale: {shrink.describe()}")
    for concurrency in concurrencies:
        print(scale.expected_demand(trajectories[seeds[0]], concurrency).describe())
    return Sweep(runs, trajectories, cost, label, args.out)


def tables(rows: Sequence[summary.Row]) -> str:
    """One table for each concurrency, schedule, admission and seed."""
    groups: dict[tuple[object, ...], list[summary.Row]] = {}
    for row in rows:
        groups.setdefault((row["concurrency"], row["schedule"], row["admission"], row["seed"]), []).append(
            row
        )
    return "\n\n".join(
        f"{concurrency} agents, {schedule}, admission {admission}, seed {seed}\n{summary.table(group)}"
        for (concurrency, schedule, admission, seed), group in groups.items()
    )


def main(args: argparse.Namespace) -> int:
    try:
        sweep = plan(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from eval.sim.sweep import describe, run_all

    args.out.mkdir(parents=True, exist_ok=True)
    arguments = {
        name: value
        for name, value in sorted(vars(args).items())
        if name not in ("out", "jobs", "command", "data") and value is not None
    }
    if args.trace:
        arguments["trace"] = [os.path.basename(name) for name in args.trace]
    (args.out / "sweep.json").write_text(json.dumps(describe(sweep, arguments), indent=1) + "\n")
    rows: list[summary.Row] = []
    # Also as a background job, which starts with Ctrl-C ignored, and for a plain kill.
    former = {
        name: signal.signal(name, signal.default_int_handler) for name in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        for rows in run_all(sweep, args.jobs):
            summary.write(rows, args.out / "results.json")
    except KeyboardInterrupt:
        pass
    finally:
        for name, handler in former.items():
            signal.signal(name, handler)
    if rows:
        print(tables(rows))
    failed = [row for row in rows if "failed" in row]
    for row in failed:
        where = (
            f"{row['policy']}, {row['schedule']}, admission {row['admission']}, {row['concurrency']} agents"
        )
        print(f"error: {where}, seed {row['seed']}: {row['failed']}", file=sys.stderr)
    complete = len(rows) == len(sweep.runs) and not any(row.get("partial") for row in rows)
    print(
        f"{len(rows)} of {len(sweep.runs)} runs in {args.out / 'results.json'}"
        + ("" if complete else " (partial)")
    )
    if failed:
        return 1
    return 0 if complete else 130
