"""python -m sglang_agentcache.train --trace FILE... --out DIR [--json]

Train a duration predictor on agent traces or on a server's call log, say how good it is on a quarter of the
sessions that it had not seen, beside the usual baselines, and save one trained on everything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_agentcache.predictor.baselines import Baselines, wait_name
from sglang_agentcache.predictor.duration import ESTIMATORS, DurationPredictor
from sglang_agentcache.predictor.evaluation import evaluate, tool_rows
from sglang_agentcache.predictor.metrics import score
from sglang_agentcache.predictor.records import WaitRecords, add_trace_argument, read_records
from sglang_agentcache.predictor.store import save

#: Fewest finished tool waits, in training and in validation, for scores that mean something.
MIN_WAITS = 20


def train(
    records: WaitRecords, estimator: str, progress: bool = True, hold_out: str | None = None
) -> tuple[DurationPredictor, Baselines | None, dict[str, Any]]:
    """Return (the predictor fitted on all rows, the baselines, the summary).

    The scores in the summary are those of a predictor fitted on three quarters of the session groups, on the
    rest. The baselines stay as they were fitted on the three quarters (None: too few rows to validate).

    Raises:
        ValueError: no rows at all.
    """
    began = time.monotonic()

    def say(text: str) -> None:
        if progress:
            print(f"[{time.monotonic() - began:5.1f} s] {text}", file=sys.stderr, flush=True)

    at = tool_rows(records)
    summary: dict[str, Any] = {
        "waits": len(records),
        "tool_waits": len(at),
        "censored": int(sum(records.censored)),
        "sessions": len(set(records.sessions)),
        "calls_per_tool": dict(Counter(wait_name(records.waits[i]) for i in at).most_common()),
    }
    say(f"{len(records)} waits of {summary['sessions']} sessions")
    baselines = predictor = None
    if hold_out is None:
        known, unseen = (records.select(part) for part in records.split())
    else:
        held = [source == hold_out for source in records.sources]
        known, unseen = (
            records.select(i for i, each in enumerate(held) if each is part) for part in (False, True)
        )
        if not len(known) or not len(unseen):
            raise ValueError(f"--hold-out: {hold_out!r} names none or all of the sources in these files")
        records = known
    if min(len(tool_rows(known)), len(tool_rows(unseen))) < MIN_WAITS:
        summary["validation"] = None
        say(f"fewer than {MIN_WAITS} tool waits on one side of a split: trained, but not validated")
    else:
        say(f"fitting {estimator} on {len(known)} waits")
        predictor = _fitted(known, estimator)
        own = evaluate(predictor, unseen)
        say("fitting the baselines")
        scored = tool_rows(unseen)
        actual = np.array(unseen.durations)[scored]
        baselines = Baselines().fit(known)
        summary["validation"] = {estimator: own} | {
            name: score(actual, predicted[scored]) for name, predicted in baselines.predict(unseen).items()
        }
    if predictor is None or hold_out is None:
        say(f"fitting {estimator} on all {len(records)} waits")
        predictor = _fitted(records, estimator)
    summary["seconds"] = round(time.monotonic() - began, 1)
    return predictor, baselines, summary


def _fitted(records: WaitRecords, estimator: str) -> DurationPredictor:
    return DurationPredictor(estimator).fit(
        records.waits,
        records.durations,
        sessions=records.sessions,
        groups=records.groups,
        censored=records.censored,
    )


def render(summary: dict[str, Any]) -> str:
    """The summary as text for people."""
    tools = ", ".join(f"{name} {count}" for name, count in list(summary["calls_per_tool"].items())[:12])
    lines = [
        f"{summary['tool_waits']} tool waits of {summary['sessions']} sessions ({tools}) in "
        f"{summary['seconds']} s"
    ]
    if summary["validation"] is None:
        return "\n".join([*lines, "too few waits for a validation split"])
    lines.append(
        f"{'on unseen sessions':26s} {'order':>7s} {'error':>7s}   (pairwise accuracy; mean |log10 seconds|)"
    )
    for name, scores in summary["validation"].items():
        lines.append(f"{name:26s} {scores['pairwise_accuracy']:7.4f} {scores['mean_abs_log10_error']:7.4f}")
        if "coverage_80" in scores:
            lines.append(f"{'  80 % intervals cover':26s} {100 * scores['coverage_80']:6.1f} %")
            lines.append(
                f"{'  without history':26s} {scores['without_history']['pairwise_accuracy']:7.4f} "
                f"{scores['without_history']['mean_abs_log10_error']:7.4f}"
            )
            lines.extend(
                f"  {label:24s} {own['pairwise_accuracy']:7.4f} {own['mean_abs_log10_error']:7.4f} "
                f"{100 * own['coverage_80']:6.1f} %  n={own['n']}"
                for group in ("by_agent", "by_tool")
                for label, own in list(scores[group].items())[:12]
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 with one sentence on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang_agentcache.train", description=__doc__.split("\n\n")[1]
    )
    add_trace_argument(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the artefact")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="stacked")
    parser.add_argument(
        "--hold-out", metavar="SOURCE", help="validate on this source of the traces instead, never trained on"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    args = parser.parse_args(argv)
    try:
        records = read_records(args.trace)
        if not len(records):
            raise ValueError("--trace: no wait with a known duration in these files")
        predictor, baselines, summary = train(records, args.estimator, hold_out=args.hold_out)
        summary["artefact"] = str(args.out)
        about = {key: summary[key] for key in ("waits", "tool_waits", "sessions", "censored")}
        about["baselines"] = baselines.save(args.out) if baselines else None
        summary["digest"] = save(predictor, args.out, about)
    except ValueError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"train: --out {args.out}: cannot write the artefact: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary) if args.json else render(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
