"""The sentences and tables of a report as Markdown, for a document under version control."""

from __future__ import annotations

from collections.abc import Iterable

from eval.reporting.findings import QUESTIONS, answer, compare, sentence
from eval.reporting.results import METRICS, Cell, Results, baseline, in_regime


def render(results: Results) -> str:
    """Everything of the page but its charts."""
    lines: list[str] = []
    base = baseline(results)
    for first, cells in results.series():
        lines += [f"### {first.workload}, schedule {first.schedule}, admission {first.admission}", ""]
        lines += list(_about(results))
        for question, metric in QUESTIONS:
            if all(results.mean(cells[0], name, metric) is None for name in results.policies):
                continue
            lines += [f"**{question}** {answer(results, cells, metric)}", ""]
            for name in results.policies:
                parts = compare(results, cells, name, base, metric) if name != base else []
                if parts:
                    lines.append(f"* {sentence(name, base, metric, parts)}")
            lines.append("")
        for cell in cells:
            note = " (active demand fits, active and idle do not)" if in_regime(results, cell) else ""
            lines += [f"#### {cell.concurrency} agents{note}", "", *_table(results, cell), ""]
    return "\n".join(lines)


def _about(results: Results) -> Iterable[str]:
    about = results.about
    if about:
        seeds = ", ".join(f"seed {seed}: {count}" for seed, count in about["trajectories"].items())
        yield f"{about['cost']}, pool {about['capacity_tokens']:,} tokens. Trajectories: {seeds}."
        yield ""


def _table(results: Results, cell: Cell) -> Iterable[str]:
    metrics = [
        metric
        for metric in METRICS
        if any(results.mean(cell, name, metric) is not None for name in results.policies)
    ]
    yield "| policy | " + " | ".join(metric.title for metric in metrics) + " |"
    yield "| --- |" + " ---: |" * len(metrics)
    for name in results.policies:
        if name in results.rows[cell]:
            values = [results.mean(cell, name, metric) for metric in metrics]
            texts = [
                "-" if value is None else format(value, metric.form)
                for value, metric in zip(values, metrics, strict=True)
            ]
            yield f"| {name} | " + " | ".join(texts) + " |"
