"""Turns logs of agents and benchmarks into trace files (Claude Code, Codex, tau2-bench, Mooncake, ...)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from eval.importers import FORMATS, importer
from eval.importers.aiperf_output import rows
from eval.importers.context import Context
from eval.importers.finish import finished
from eval.importers.reading import Damage, WrongFormat, find_files, size
from eval.trace import TraceError, Trajectory, open_bytes, write_traces

OUTPUTS = ("trace", "aiperf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="log files (.gz too), or folders to search")
    add("--format", required=True, choices=list(FORMATS), help="what wrote them (docs/traces.md)")
    add("-o", "--output", required=True, type=Path, metavar="OUT", help=".jsonl or .jsonl.gz")
    add("--to", choices=OUTPUTS, default="trace", help="what to write (%(default)s)")
    add("--source", help="name of the recording in the trace (the format's name)")
    add("--no-arguments", action="store_true", help="drop the arguments of tool calls")
    add("--keep-ids", action="store_true", help="keep the log's session ids instead of hashes")
    add("--block-size", type=int, default=512, metavar="N", help="tokens a hash id stands for (%(default)s)")


def main(args: argparse.Namespace) -> int:
    module = importer(args.format)
    try:
        if args.block_size < 1:
            raise ValueError(f"--block-size: at least 1, got {args.block_size}")
        files = find_files(args.paths, module.PATTERNS)
        if any(file.path.resolve() == args.output.resolve() for file in files):
            raise ValueError(f"--output: {args.output} is one of the files to import")
        context = Context(
            files=files,
            source=args.source or args.format,
            expected=module.EXPECTED,
            arguments=not args.no_arguments,
            keep_ids=args.keep_ids,
            block_tokens=args.block_size,
        )
        written, interrupted = _convert(context, module.trajectories(context), args.output, args.to)
    except (ValueError, OSError, WrongFormat, TraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _report(context.damage)
    if not written.turns and not interrupted:
        print("error: the files hold no request of a model", file=sys.stderr)
        return 2
    print(f"{written.trajectories} trajectories, {written.turns} turns written to {args.output}")
    return 130 if interrupted else 0


class _Written:
    """Counts what passes."""

    def __init__(self) -> None:
        self.trajectories = self.turns = 0

    def counted(self, items: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for item in items:
            self.trajectories += 1
            self.turns += len(item.turns)
            yield item


def _convert(context: Context, drafts: Iterable[Any], output: Path, form: str) -> tuple[_Written, bool]:
    """Read everything, then write it beside ``output`` and put it in place when it is whole."""
    written, interrupted = _Written(), False
    partial = output.with_name(f".{os.getpid()}-{output.name}")

    def items() -> Iterator[Trajectory]:
        nonlocal interrupted
        try:
            yield from written.counted(finished(drafts, output.parent))
        except KeyboardInterrupt:
            interrupted = True

    try:
        with tqdm(total=size(context.files), unit="B", unit_scale=True, file=sys.stderr) as bar:
            context.advance = bar.update
            if form == "aiperf":
                _write_rows(partial, rows(items(), context.block_tokens))
            else:
                write_traces(partial, items())
        if written.turns:
            partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    return written, interrupted


def _write_rows(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    encode = msgspec.json.Encoder().encode
    with open_bytes(path, "w") as out:
        for line in lines:
            out.write(encode(line) + b"\n")


def _report(damage: Damage) -> None:
    if damage.records or damage.files:
        counts = f"{damage.records} damaged records and {damage.files} files of another format were skipped"
        print(f"warning: {counts}:", file=sys.stderr)
        for place in damage.places:
            print(f"  {place}", file=sys.stderr)
        hidden = damage.records + damage.files - len(damage.places)
        if hidden:
            print(f"  and {hidden} more", file=sys.stderr)
