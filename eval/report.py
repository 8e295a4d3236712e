"""Writes one HTML page about a folder of results: sentences, tables, curves, distributions, memory pressure.

The page is self-contained: it opens without a network. DIR is what `simulate` (or `demo`, `replay`) wrote.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder with results.json or summary.json")
    add("-o", "--output", type=Path, metavar="FILE", help="the page (DIR/report.html)")
    add("--markdown", type=Path, metavar="FILE", help="sentences and tables as Markdown as well")


def main(args: argparse.Namespace) -> int:
    from eval.reporting import markdown
    from eval.reporting.page import render
    from eval.reporting.results import Results

    output = args.output or args.folder / "report.html"
    try:
        results = Results.read(args.folder)
        page = render(results)
        output.write_text(page, encoding="utf-8")
        if args.markdown:
            args.markdown.write_text(markdown.render(results) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{output} ({len(page) / 1e6:.1f} MB)")
    return 0
