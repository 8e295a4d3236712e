"""One HTML page with everything in it: no script, no style sheet, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from eval.reporting import charts
from eval.reporting.findings import QUESTIONS, UNREACHABLE, answer, compare, sentence
from eval.reporting.results import BY_TITLE, METRICS, Cell, Results, baseline, in_regime, pick

CURVES = tuple(
    BY_TITLE[title]
    for title in (
        "TTFT s, p99",
        "uncached tokens, p99",
        "TTFT s, mean",
        "uncached tokens, mean",
        "evicted tokens",
        "goodput tokens/s",
        "session s, mean",
        "lost more than half of the history",
    )
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1280px; padding: 0 1em; color: #222
} table { border-collapse: collapse; font-size: 12.5px; margin: .5em 0 1.5em; display: block; overflow-x: auto
} th, td { padding: .2em .55em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th:first-child, td:first-child { text-align: left } .best { font-weight: bold; background: #e8f4e8 }
svg { max-width: 100%; height: auto } code { background: #f3f3f3 } .note { color: #666 }
"""


def _table(results: Results, cell: Cell) -> Iterable[str]:
    metrics = [metric for metric in METRICS if any(results.mean(cell, name, metric) is not None for name in
                                                   results.policies)]  # fmt: skip
    yield "<table><tr><th>policy</th>"
    yield from (f"<th>{escape(metric.title)}</th>" for metric in metrics)
    yield "</tr>"
    best = {}
    for metric in metrics:
        values = [results.mean(cell, name, metric) for name in results.policies if name not in UNREACHABLE]
        known = [value for value in values if value is not None]
        best[metric.title] = max(known, key=lambda value: value * metric.better) if known else None
    for name in results.policies:
        if name not in results.rows[cell]:
            continue
        yield f"<tr><td>{escape(name)}</td>"
        for metric in metrics:
            value = results.mean(cell, name, metric)
            text = "-" if value is None else format(value, metric.form)
            mark = ' class="best"' if value is not None and value == best[metric.title] else ""
            yield f"<td{mark}>{text}</td>"
        yield "</tr>"
    yield "</table>"


def _findings(results: Results, cells: Sequence[Cell]) -> Iterable[str]:
    base = baseline(results)
    yield "<h3>Where each policy wins and loses</h3>"
    for question, metric in QUESTIONS:
        if all(results.mean(cells[0], name, metric) is None for name in results.policies):
            continue
        yield f"<p><b>{escape(question)}</b> {escape(answer(results, cells, metric))}</p><ul>"
        for name in results.policies:
            parts = compare(results, cells, name, base, metric) if name != base else []
            if parts:
                yield f"<li>{escape(sentence(name, base, metric, parts))}</li>"
        yield "</ul>"


def _about(results: Results) -> Iterable[str]:
    about = results.about
    if about:
        yield f"<p>{escape(about['cost'])}, pool {about['capacity_tokens']:,} tokens. Trajectories by seed: "
        yield escape(", ".join(f"{seed}: {count}" for seed, count in about["trajectories"].items())) + ".</p>"
        given = about["arguments"].items()
        arguments = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given)
        yield f"<p class=note>Arguments: <code>{escape(arguments)}</code></p>"
    if results.partial:
        yield f"<p class=note>{results.partial} interrupted runs are left out.</p>"


def render(results: Results) -> str:
    """The page."""
    title = f"agentcache: {', '.join(sorted({cell.workload for cell in results.rows}))}"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        *_about(results),
    ]
    for first, cells in results.series():
        heading = f"{first.workload}, schedule {first.schedule}, admission {first.admission}"
        parts += [f"<h2>{escape(heading)}</h2>", *_findings(results, cells)]
        parts += [
            "<h3>Over concurrency</h3>",
            "<p class=note>Means over seeds; bars: smallest to largest.</p>",
        ]
        parts.append(charts.curves(results, cells, CURVES))
        parts += _tails(results, cells)
        parts += _pressure(results, cells)
        parts.append("<h3>Tables</h3><p class=note>Means over seeds. Bold: best, oracle aside.</p>")
        for cell in cells:
            note = " (active demand fits, active and idle do not)" if in_regime(results, cell) else ""
            parts += [f"<h4>{cell.concurrency} agents{note}</h4>", *_table(results, cell)]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _tails(results: Results, cells: Sequence[Cell]) -> Iterable[str]:
    cell = pick(cells, lambda item: in_regime(results, item))
    runs = {name: results.requests(cell, name) for name in results.policies}
    if any(runs.values()):
        yield f"<h3>Distributions at {cell.concurrency} agents, all seeds</h3>"
        yield charts.tails(runs, results.policies)


def _pressure(results: Results, cells: Sequence[Cell]) -> Iterable[str]:
    name = baseline(results)
    series = {cell.concurrency: data for cell in cells if (data := results.pressure(cell, name)) is not None}
    if series:
        yield f"<h3>Memory pressure over time, {escape(name)}, first seed</h3>"
        yield charts.pressure(series)
