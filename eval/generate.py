"""Writes a generated workload as a trace file: agent trajectories fitted to public agent runs, seeded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from eval import workload
from eval.trace import write_traces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--profile", required=True, choices=list(workload.PROFILES), help="which kind of agent")
    add("--trajectories", type=int, default=100, help="how many (%(default)s)")
    add("--seed", type=int, default=0, help="same seed, same file (%(default)s)")
    add("-o", "--output", required=True, type=Path, metavar="FILE", help=".jsonl or .jsonl.gz")


def main(args: argparse.Namespace) -> int:
    try:
        items = workload.generate(args.profile, args.trajectories, args.seed)
        bar = tqdm(items, total=args.trajectories, unit="traj", file=sys.stderr)
        count = write_traces(args.output, bar)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} trajectories written to {args.output}")
    return 0
