"""Charts as SVG text, to stand inside a page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

from eval.plot import ccdf
from eval.records import RequestRecord
from eval.reporting.results import Cell, Metric, Results

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

CURVE_POINTS = 250
"""A CCDF is drawn through this many points, evenly spread over the logarithm of its share."""


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    # No date and no random ids: equal results give equal pages.
    with matplotlib.rc_context({"svg.hashsalt": "agentcache", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _style(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    return {
        name: {"color": colours[index % 20], "linestyle": "--" if name == "oracle" else "-"}
        for index, name in enumerate(policies)
    }


def curves(results: Results, cells: Sequence[Cell], metrics: Sequence[Metric]) -> str:
    """Each metric over concurrency; points are means over seeds, bars their range."""
    style = _style(results.policies)
    rows = -(-len(metrics) // 2)
    figure, panels = pyplot.subplots(rows, 2, figsize=(12, 3.6 * rows), layout="constrained", squeeze=False)
    for axes, metric in zip(panels.flat, metrics, strict=False):
        for policy in results.policies:
            points = [(cell.concurrency, results.values(cell, policy, metric)) for cell in cells]
            points = [(count, values) for count, values in points if values]
            if not points:
                continue
            means = np.array([sum(values.values()) / len(values) for _, values in points])
            low = means - [min(values.values()) for _, values in points]
            high = np.array([max(values.values()) for _, values in points]) - means
            axes.errorbar(
                [count for count, _ in points],
                means,
                [low, high],
                label=policy,
                capsize=2,
                linewidth=1.2,
                **style[policy],
            )
        axes.set(title=metric.title, xlabel="live agents")
        axes.grid(alpha=0.3, linewidth=0.5)
    for axes in list(panels.flat)[len(metrics) :]:
        axes.set_axis_off()
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return _svg(figure)


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(x) <= CURVE_POINTS:
        return x, y
    places = len(x) - np.geomspace(1, len(x), CURVE_POINTS).astype(int)
    chosen = np.unique(places)
    return x[chosen], y[chosen]


def tails(runs: Mapping[str, Sequence[RequestRecord]], policies: Sequence[str]) -> str:
    """CCDFs of TTFT and of uncached tokens, one line per policy."""
    style = _style(policies)
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for name, requests in runs.items():
        served = [record for record in requests if record.error is None]
        waits = [record.ttft_s for record in served if record.ttft_s is not None]
        # A logarithmic axis has no zero.
        missing = [float(max(1, record.uncached_tokens)) for record in served]
        for axes, values in zip(panels, (waits, missing), strict=True):
            if values:
                axes.step(*_thin(*ccdf(values)), where="post", label=name, linewidth=1.2, **style[name])
    for axes, title in zip(panels, ("TTFT, s", "uncached prompt tokens"), strict=True):
        axes.set(xscale="log", yscale="log", xlabel=title, ylabel="share of requests at least this large")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return _svg(figure)


def pressure(series: Mapping[int, Mapping[str, Any]]) -> str:
    """Demand over time, one panel per concurrency: active, idle, and the pool (RR-EVICT figure 4)."""
    count = len(series)
    figure, panels = pyplot.subplots(1, count, figsize=(4 * count, 3.2), layout="constrained", squeeze=False)
    for axes, (concurrency, data) in zip(panels.flat, series.items(), strict=True):
        active, idle = np.array(data["active_tokens"]), np.array(data["idle_tokens"])
        axes.stackplot(
            data["t_s"], active, idle, labels=["active", "live idle"], colors=["#d95f02", "#a6cee3"]
        )
        axes.axhline(data["capacity_tokens"], color="black", linewidth=1, label="pool")
        axes.set(title=f"{concurrency} agents", xlabel="s", ylabel="tokens of KV")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return _svg(figure)
