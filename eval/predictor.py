"""Score a duration predictor on recorded waits: order, error, coverage, per agent and per tool."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sglang_agentcache.predictor.baselines import Baselines
from sglang_agentcache.predictor.evaluation import evaluate, tool_rows
from sglang_agentcache.predictor.metrics import score
from sglang_agentcache.predictor.records import WaitRecords, add_trace_argument, read_records
from sglang_agentcache.predictor.store import load, read_about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--predictor", type=Path, required=True, metavar="DIR", help="artefact of sglang_agentcache.train"
    )
    add_trace_argument(parser)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME",
        help="score only waits of this trace source; may be repeated",
    )
    parser.add_argument(
        "--online", action="store_true", help="let the predictor learn each wait after it is scored"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, one entry per estimator")


def evaluate_artefact(
    directory: Path, records: WaitRecords, online: bool = False
) -> dict[str, dict[str, Any]]:
    """Scores per estimator: the artefact's own, with detail, then the baselines it was saved with.

    Raises:
        ArtefactError: ``directory`` is not a readable artefact.
    """
    predictor = load(directory)
    out: dict[str, dict[str, Any]] = {predictor.estimator: evaluate(predictor, records, online)}
    baselines = Baselines.load(directory, read_about(directory).get("baselines"))
    if baselines is not None:
        at = tool_rows(records)
        actual = np.array(records.durations)[at]
        out |= {name: score(actual, seconds[at]) for name, seconds in baselines.predict(records).items()}
    return out


def main(args: argparse.Namespace) -> int:
    """Return 0, or 2 with one sentence on standard error."""
    try:
        records = read_records(args.trace)
        if args.source:
            records = records.select(at for at, source in enumerate(records.sources) if source in args.source)
        if not len(tool_rows(records)):
            raise ValueError(
                "--trace: no finished wait for a tool in these files"
                + (f" from {', '.join(args.source)} (--source)" if args.source else "")
            )
        scores = evaluate_artefact(args.predictor, records, args.online)
    except ValueError as error:
        print(f"eval predictor: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(scores))
        return 0
    print(f"{'':26s} {'order':>7s} {'error':>7s} {'n':>7s}   (pairwise accuracy; mean |log10 seconds|)")
    for name, entry in scores.items():
        print(_line(f"{name:26s}", entry))
        for group in ("by_agent", "by_tool"):
            for label, own in entry.get(group, {}).items():
                print(_line(f"  {label:24s}", own))
    return 0


def _line(label: str, entry: dict[str, Any]) -> str:
    text = f"{label} {entry['pairwise_accuracy']:7.4f} {entry['mean_abs_log10_error']:7.4f} {entry['n']:7d}"
    return text + (f"   80 % cover {100 * entry['coverage_80']:.1f} %" if "coverage_80" in entry else "")
