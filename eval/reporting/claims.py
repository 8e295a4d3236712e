"""The papers' headline claims, the runs that put them to the test, and what we cannot have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.reporting.results import BY_TITLE, Cell, Metric, Results
from sglang_agentcache.scheduling.order import GREEDY

RR_EVICT = "RR-EVICT (arXiv 2609.32278)"
CACHEWISE = "CacheWise (arXiv 2606.16824)"
PREFIX_AWARE = GREEDY
"""CacheWise's own order has no ageing."""


@dataclass(frozen=True)
class Claim:
    """One figure of a paper.

    Attributes:
        text: what it says, and where.
        paper: the figure as printed.
        metric: our number for it.
        ours, base: policy and schedule that are compared.
        factor: True for "times better", False for "reduced by".
    """

    text: str
    paper: str
    metric: Metric
    ours: tuple[str, str]
    base: tuple[str, str]
    factor: bool = False


@dataclass(frozen=True)
class Experiment:
    """Runs of `simulate` and the claims they speak to. ``arguments``: without data, seed and output."""

    name: str
    title: str
    arguments: str
    trajectories: int
    claims: Sequence[Claim]
    differences: str


def _reductions(where: str, base: str, ttft: str, uncached: str) -> tuple[Claim, ...]:
    pair = (("rr", "fcfs"), (base, "fcfs"))
    return (
        Claim(f"P99 TTFT against {base}, {where}", ttft, BY_TITLE["TTFT s, p99"], *pair),
        Claim(f"P99 uncached against {base}, {where}", uncached, BY_TITLE["uncached tokens, p99"], *pair),
    )


_CACHEWISE = (("predictive", PREFIX_AWARE), ("lru", "fcfs"))
_SESSION, _GOODPUT = BY_TITLE["session s, mean"], BY_TITLE["goodput tokens/s"]
_EVICTED = BY_TITLE["evicted tokens"]

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="rr-tau2",
        title=f"{RR_EVICT}: tau2-bench, Qwen3-Coder-30B-A3B, one server",
        arguments="--workload tau2 --model qwen3-coder-30b-a3b --gpu h100 "
        "--policies lru,lru+completion,rr,oracle --concurrency 24,32,48,64,80",
        trajectories=222,
        claims=_reductions("figure 3", "lru", "-75.4 %", "-65.7 %"),
        differences="The paper's 222 trajectories and its GPU are not public; ours are recorded tau-bench "
        "and tau2-bench runs with other models, mostly without tool schemas in the prompt, and most gaps "
        "come from the generator's tool model.",
    ),
    Experiment(
        name="rr-swe-1p3d",
        title=f"{RR_EVICT}: SWE-bench, Qwen3-8B, 1P3D",
        arguments="--workload swe-bench --model qwen3-8b --gpu h100 --decode-workers 3 "
        "--policies lru,lru+completion,rr,predictive,convex,oracle --concurrency 16,24,32,40,48",
        trajectories=120,
        claims=(
            *_reductions("figure 6", "lru", "-60.7 %", "-60.8 %"),
            *_reductions("figure 6", "lru+completion", "-60.5 %", "-56.2 %"),
        ),
        differences="Recorded mini-swe-agent runs on SWE-bench Verified with another model; tool times come "
        "from the generator's tool model, since the recording has whole seconds of model and tool together.",
    ),
    Experiment(
        name="cachewise-coding",
        title=f"{CACHEWISE}: coding agents, Qwen2.5-Coder-32B, TP=2 on H200",
        arguments=f"--workload coding-agent --model qwen2.5-coder-32b --gpu h200 "
        f"--schedule fcfs,{PREFIX_AWARE} --concurrency 5,10,15,20,30 "
        "--session-boundary 60 --max-turns 60",
        trajectories=48,
        claims=(
            Claim(
                "session completion against vLLM (LRU, FCFS), 6.2", "2.7-3.5x", _SESSION, *_CACHEWISE, True
            ),
            Claim("token goodput against vLLM (LRU, FCFS), 6.2", "1.64-2x", _GOODPUT, *_CACHEWISE, True),
            Claim("evictions against vLLM, 6.2", "2-2.6x fewer", _EVICTED, *_CACHEWISE, True),
            Claim(
                "session completion against LRU, both prefix-aware, 6.3",
                "1.7-2x",
                _SESSION,
                ("predictive", PREFIX_AWARE),
                ("lru", PREFIX_AWARE),
                True,
            ),
            Claim(
                "goodput of prefix-aware scheduling alone, 6.3",
                "1.38-1.7x",
                _GOODPUT,
                ("lru", PREFIX_AWARE),
                ("lru", "fcfs"),
                True,
            ),
            Claim(
                "CacheWise* (true durations): session completion against vLLM, 6.2",
                "about CacheWise's",
                _SESSION,
                ("predictive+truth", PREFIX_AWARE),
                ("lru", "fcfs"),
                True,
            ),
        ),
        differences="CATraces is not in our data; ours are other recorded coding agents. vLLM evicts blocks, "
        "SGLang leaves; prefill goes in SGLang's chunks of 8,192 tokens, the paper's in 512.",
    ),
)


def arguments(experiment: Experiment) -> list[str]:
    """Its arguments; where it names no policies, those that CacheWise and we are about."""
    given = experiment.arguments.split()
    if "--policies" not in given:
        given += ["--policies", "lru,infercept,rr,predictive,convex,predictive+truth"]
    return given


@dataclass(frozen=True)
class Verdict:
    """A claim beside our figure. ``best`` is None if we have no such run."""

    claim: Claim
    best: float | None
    worst: float | None
    at: int | None
    """Concurrency of the best."""

    def figure(self) -> str:
        """Ours, in the claim's terms: the best cell, and the range over all that are under pressure."""
        if self.best is None or self.worst is None:
            return "no run"
        if self.claim.factor:
            return f"{self.best:.2f}x at {self.at} agents ({self.worst:.2f}-{self.best:.2f}x)"
        return f"{-self.best:+.1%} at {self.at} agents ({-self.worst:+.1%} to {-self.best:+.1%})"


def judge(results: Results, claim: Claim) -> Verdict:
    """Compare over all concurrencies at which the baseline evicts what is still wanted."""
    found: list[tuple[float, int]] = []
    for cell in results.rows:
        other = Cell(cell.workload, claim.base[1], cell.admission, cell.concurrency)
        if cell.schedule != claim.ours[1] or other not in results.rows:
            continue
        lost = results.mean(other, claim.base[0], BY_TITLE["lost more than half of the history"])
        ours = results.mean(cell, claim.ours[0], claim.metric)
        base = results.mean(other, claim.base[0], claim.metric)
        if not lost or ours is None or not base or not ours:
            continue
        ratio = ours / base
        times = ratio if claim.metric.better > 0 else 1 / ratio
        gain = times if claim.factor else 1 - ratio
        found.append((gain, cell.concurrency))
    if not found:
        return Verdict(claim, None, None, None)
    best, at = max(found)
    return Verdict(claim, best, min(found)[0], at)


def markdown(experiments: Mapping[str, Results]) -> str:
    """All claims beside our figures, as Markdown tables."""
    lines = ["# The papers' claims beside ours", ""]
    for experiment in EXPERIMENTS:
        if experiment.name not in experiments:
            continue
        results = experiments[experiment.name]
        about = results.about
        lines += [f"## {experiment.title}", ""]
        if about:
            lines += [
                f"{about['cost']}, pool {about['capacity_tokens']:,} tokens, {about['trajectories']}",
                "",
            ]
        lines += ["| claim | paper | ours, best (range under pressure) |", "| --- | --- | --- |"]
        lines += [
            f"| {claim.text} | {claim.paper} | {judge(results, claim).figure()} |"
            for claim in experiment.claims
        ]
        lines += ["", f"Differs: {experiment.differences}", ""]
    return "\n".join(lines)
