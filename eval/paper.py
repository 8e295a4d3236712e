"""Reruns the papers' experiments as far as public data allow, and prints our figure beside each claim.

Three experiments in the simulator: RR-EVICT on tau2-bench and on SWE-bench under 1P3D, CacheWise on coding
agents. Writes a results folder and a report for each, and paper.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eval import simulate
from eval.reporting.claims import EXPERIMENTS, Experiment, arguments, markdown
from eval.reporting.results import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/paper"), metavar="DIR", help="(%(default)s)")
    add("--only", choices=[item.name for item in EXPERIMENTS], help="one experiment")
    add("--share", type=float, default=1.0, help="part of each experiment's trajectories (%(default)s)")
    add("--seed", default="0", help="separated by commas (%(default)s)")
    add("--data", metavar="DIR", help="folder of recorded workloads, as for simulate")
    add("--jobs", type=int, default=1, help="processes (%(default)s)")


def _simulate(experiment: Experiment, args: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    given = [*arguments(experiment), "--seed", args.seed, "--jobs", str(args.jobs)]
    given += ["--limit-trajectories", str(max(1, round(experiment.trajectories * args.share)))]
    given += ["--out", str(args.out / experiment.name), *(["--data", args.data] if args.data else [])]
    print(f"\n{experiment.title}\npython -m eval simulate {' '.join(given)}", file=sys.stderr)
    return simulate.main(parser.parse_args(given))


def main(args: argparse.Namespace) -> int:
    if not 0 < args.share <= 1:
        print(f"error: --share: above 0, at most 1; got {args.share}", file=sys.stderr)
        return 2
    from eval.reporting.page import render

    done: dict[str, Results] = {}
    for experiment in EXPERIMENTS:
        if args.only not in (None, experiment.name):
            continue
        code = _simulate(experiment, args)
        if code == 2:
            return code
        folder = args.out / experiment.name
        done[experiment.name] = Results.read(folder)
        (folder / "report.html").write_text(render(done[experiment.name]), encoding="utf-8")
        if code:
            break
    text = markdown(done)
    (args.out / "paper.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if len(done) == len(EXPERIMENTS) or args.only else 130
