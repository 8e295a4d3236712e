"""Replays agent trajectories in closed loop against a running SGLang server.

A fixed number of agents is live. Each sends its next request when the recorded gap has passed since the
previous answer; when a trajectory ends, the next one is admitted. Prompts extend the tokens that the server
really generated. Works with any SGLang server; hints are sent only if asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from eval import dataset, records, scale, summary
from eval.closed_loop import Outcome, Replay, ReplayConfig
from eval.counters import Counters
from eval.records import RequestRecord
from eval.trace import Trajectory, read_traces


@contextlib.contextmanager
def progress_and_log(path: Path, total: int, label: str) -> Iterator[Callable[[RequestRecord], None]]:
    """A progress bar over requests, and every record written to ``path`` as it comes."""
    with path.open("wb") as out, tqdm(total=total, desc=label, unit="req", file=sys.stderr) as bar:

        def on_request(record: RequestRecord) -> None:
            out.write(records.encode(record))
            out.flush()
            bar.update()

        yield on_request


def replay(
    config: ReplayConfig, trajectories: Sequence[Trajectory], path: Path, label: str = "replay"
) -> Outcome:
    """Replay with a progress bar, records in ``path``. Ctrl-C ends it early with what was measured so far."""
    total = sum(len(item.turns) for item in trajectories)
    with progress_and_log(path, total, label) as on_request:
        run = Replay(config, trajectories, on_request)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run.run())
    return run.outcome


def add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make a `scale.Scale`; what is not given is None."""
    add = parser.add_argument_group("scale").add_argument
    add("--token-scale", type=float, help="factor on contexts and outputs")
    add("--gap-scale", type=float, help="factor on gaps")
    add("--gap-cap", type=float, help="recorded seconds of a tool gap at most")
    add("--human-gap-cap", type=float, help="the same for a person's gap")
    add(
        "--session-boundary",
        type=float,
        help="a person's gap over this many recorded seconds ends the session",
    )
    add("--max-turns", type=int, help="cut longer trajectories")
    add("--max-context", type=int, help="scaled tokens of one context at most")


def scale_from(args: argparse.Namespace, defaults: scale.Scale) -> scale.Scale:
    """``defaults`` with what was asked for. Raises ValueError."""
    given = {
        "tokens": args.token_scale,
        "gaps": args.gap_scale,
        "gap_cap_s": args.gap_cap,
        "human_cap_s": args.human_gap_cap,
        "boundary_s": args.session_boundary,
        "max_turns": args.max_turns,
        "max_context": args.max_context,
    }
    return dataclasses.replace(
        defaults, **{name: value for name, value in given.items() if value is not None}
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", required=True, help="base address of the server")
    add("--trace", nargs="+", required=True, metavar="FILE", help="trajectories, .jsonl or .jsonl.gz")
    add("--out", required=True, type=Path, metavar="DIR", help="gets requests.jsonl and summary.json")
    add("--concurrency", type=int, default=16, help="live agents (%(default)s)")
    add("--trajectories", type=int, help="replay a sample of this many, taken evenly from the sources")
    add("--seed", type=int, default=0, help="of the sample, the unknown gaps and the token ids")
    add("--hints", action="store_true", help="send trajectory ids, tool calls and final signals")
    add("--oracle", action="store_true", help="with --hints: also the true idle times")
    add("--policy", default="unnamed", help="label of the row in summary.json")
    add("--ramp", type=float, default=0.0, help="seconds over which the first agents start")
    add("--vocab-size", type=int, default=256, help="token ids are drawn from this many (%(default)s)")
    add("--first-id", type=int, default=0, help="lowest token id (%(default)s)")
    add("--api-key", help="bearer token of the server")
    add("--timeout", type=float, default=600.0, help="seconds for one request (%(default)s)")
    add_scale_arguments(parser)


def main(args: argparse.Namespace) -> int:
    try:
        shrink = scale_from(args, scale.Scale())
        if args.concurrency < 1:
            raise ValueError(f"--concurrency: at least 1, got {args.concurrency}")
        chosen = dataset.choose(read_traces(*args.trace), args.trajectories, args.seed)
        trajectories = list(scale.apply(chosen, shrink))
        demand = scale.expected_demand(trajectories, args.concurrency)
        before = Counters.read(args.url, args.api_key)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"scale: {shrink.describe()}\n{demand.describe()}")
    args.out.mkdir(parents=True, exist_ok=True)
    config = ReplayConfig(
        url=args.url,
        concurrency=args.concurrency,
        seed=args.seed,
        hints=args.hints or args.oracle,
        oracle=args.oracle,
        vocab_size=args.vocab_size,
        first_id=args.first_id,
        ramp_s=args.ramp,
        api_key=args.api_key,
        timeout_s=args.timeout,
    )
    outcome = replay(config, trajectories, args.out / "requests.jsonl")
    row = summary.row(
        outcome.requests,
        outcome.session_s,
        policy=args.policy,
        workload=",".join(Path(name).name for name in args.trace),
        concurrency=args.concurrency,
        seed=args.seed,
        counters=Counters.read(args.url, args.api_key) - before,
        partial=not outcome.finished,
    )
    summary.write([row], args.out / "summary.json")
    print(summary.table([row]))
    return 0 if outcome.finished else 130
