"""Plain sentences: where a policy wins, where it loses, by how much, and whether the seeds agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.reporting.results import BY_TITLE, Cell, Metric, Results

QUESTIONS = (
    ("Which policy has the shortest tail of uncached tokens?", BY_TITLE["uncached tokens, p99"]),
    ("Which policy prefills the least?", BY_TITLE["uncached tokens, mean"]),
    ("Which policy has the shortest P99 TTFT?", BY_TITLE["TTFT s, p99"]),
    ("Which policy has the shortest mean TTFT?", BY_TITLE["TTFT s, mean"]),
    ("Which policy evicts the least?", BY_TITLE["evicted tokens"]),
    ("Which policy finishes sessions soonest?", BY_TITLE["session s, mean"]),
    ("Which policy gets the most useful tokens through?", BY_TITLE["goodput tokens/s"]),
)
TIE = 0.005
"""Differences below this share are called equal."""
LARGE = 4.0
"""Changes above this share are given as a factor."""
UNREACHABLE = ("oracle", "predictive+truth", "convex+truth")
"""Know the future: bounds, not candidates."""


@dataclass(frozen=True)
class Comparison:
    """A policy against the baseline in one cell; ``change`` is a share of the baseline's mean over seeds."""

    cell: Cell
    change: float
    agreed: bool
    """Whether every seed says the same."""


def compare(
    results: Results, cells: Sequence[Cell], policy: str, base: str, metric: Metric
) -> list[Comparison]:
    """Compare seed by seed in every cell that has both policies."""
    found = []
    for cell in cells:
        ours, theirs = results.values(cell, policy, metric), results.values(cell, base, metric)
        seeds = sorted(ours.keys() & theirs.keys())
        total = sum(theirs[seed] for seed in seeds)
        if not seeds or total == 0:
            continue
        change = sum(ours[seed] for seed in seeds) / total - 1
        signs = {ours[seed] > theirs[seed] for seed in seeds if ours[seed] != theirs[seed]}
        found.append(Comparison(cell, change, len(signs) <= 1))
    return found


def _cells(parts: Sequence[Comparison]) -> str:
    def one(part: Comparison) -> str:
        doubt = "" if part.agreed else ", seeds disagree"
        size = f"{part.change:+.1%}" if part.change < LARGE else f"{1 + part.change:.0f}x"
        return f"{size} at {part.cell.concurrency} agents{doubt}"

    return "; ".join(one(part) for part in parts)


def sentence(policy: str, base: str, metric: Metric, parts: Sequence[Comparison]) -> str:
    """One sentence on one policy and metric over all concurrencies."""
    better = [part for part in parts if part.change * metric.better > TIE]
    worse = [part for part in parts if part.change * metric.better < -TIE]
    equal = len(parts) - len(better) - len(worse)
    verdict = [
        f"better at {len(better)} of {len(parts)} concurrencies ({_cells(better)})" if better else "",
        f"worse at {len(worse)} ({_cells(worse)})" if worse else "",
        f"equal at {equal}" if equal else "",
    ]
    return f"{policy} against {base}, {metric.title}: " + "; ".join(filter(None, verdict)) + "."


def answer(results: Results, cells: Sequence[Cell], metric: Metric) -> str:
    """Which policy is best at each concurrency, bounds aside."""
    best = []
    for cell in cells:
        means = {
            policy: value
            for policy in results.policies
            if policy not in UNREACHABLE and (value := results.mean(cell, policy, metric)) is not None
        }
        if not means:
            continue
        top = max(means.values(), key=lambda value: value * metric.better)
        names = [name for name, value in means.items() if abs(value - top) <= TIE * abs(top)]
        who = ", ".join(names) if len(names) < len(means) else "all policies alike"
        best.append(f"{cell.concurrency} agents: {who} ({top:{metric.form}})")
    return "; ".join(best) + "."
