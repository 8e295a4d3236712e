"""The tails of several runs in one picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from eval.records import RequestRecord


def ccdf(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted values and, for each, the share of samples that are at least as large."""
    ordered = np.sort(np.asarray(values, dtype=float))
    return ordered, 1.0 - np.arange(len(ordered)) / len(ordered)


def plot_tails(runs: Mapping[str, Sequence[RequestRecord]], path: str | os.PathLike[str], title: str) -> None:
    """Write a PNG: CCDFs of TTFT and of uncached prompt tokens, one line per run, both axes logarithmic."""
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for label, requests in runs.items():
        served = [record for record in requests if record.error is None]
        for axes, values in (
            (panels[0], [record.ttft_s for record in served if record.ttft_s is not None]),
            # A logarithmic axis has no zero: a fully cached prompt is drawn at one token.
            (panels[1], [max(1, record.uncached_tokens) for record in served]),
        ):
            if values:
                axes.step(*ccdf(values), where="post", label=label)
    for axes, heading in ((panels[0], "TTFT (s)"), (panels[1], "uncached prompt tokens")):
        axes.set(xscale="log", yscale="log", xlabel=heading, ylabel="share of requests at least this large")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    panels[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
