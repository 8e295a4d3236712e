"""Generated agent sessions, from published figures only: what the default predictor is trained on.

The quantiles (P50, P90, P99 in seconds) and the shares of tools and of command classes are those of 64,194
recorded turns of Claude Code, Codex and OpenCode. No recorded text is used: commands and paths are made up
here.

``python -m sglang_agentcache.predictor.synthetic --out DIR`` trains the artefact that the package ships.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sglang_agentcache.predictor.figures import (
    COMMANDS,
    PERSON,
    PERSON_SHARE,
    SLEEP_SHARE,
    TOOLS,
    TURNS,
    Spread,
)
from sglang_agentcache.predictor.records import WaitRecords
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait

if TYPE_CHECKING:
    from sglang_agentcache.predictor.duration import DurationPredictor

# How alike the calls of one session are (correlation of normal scores): of one tool, of one command class.
_SESSION_LIKENESS, _CLASS_LIKENESS = 0.2, 0.55
# The figures begin at the median; what lies below is taken to spread like this, log10 seconds per score.
_LOWER_SPREAD = 0.45
_WORDS = [
    "api",
    "auth",
    "cache",
    "client",
    "config",
    "core",
    "data",
    "index",
    "model",
    "parser",
    "queue",
    "router",
    "schema",
    "server",
    "store",
    "sync",
    "token",
    "util",
    "view",
]


class Generator:
    """Sessions of waits with durations; equal seeds give equal sessions."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def sessions(self, n_waits: int) -> WaitRecords:
        """At least ``n_waits`` waits, in whole sessions."""
        records = WaitRecords()
        agents = list(TOOLS)
        weights = [sum(entry[0] for entry in TOOLS[agent].values()) for agent in agents]
        number = 0
        while len(records) < n_waits:
            self._session(records, agents[self._pick(weights)], f"generated-{number}")
            number += 1
        return records

    def _session(self, records: WaitRecords, agent: str, name: str) -> None:
        scale = math.log(TURNS[1] / TURNS[0]) / 1.2816
        turns = int(np.clip(TURNS[0] * math.exp(scale * self._random.standard_normal()), 2, 500))
        likeness: dict[str, float] = {}
        tools = TOOLS[agent]
        names = list(tools)
        for _ in range(turns):
            if self._random.random() < PERSON_SHARE:
                records.add(Wait(), self._duration(PERSON, likeness, "person", "person"), name, agent=agent)
                continue
            tool = names[self._pick([tools[each][0] for each in names])]
            arguments, duration = self._call(agent, tool, likeness)
            records.add(Wait((ToolCall(tool, json.dumps(arguments)),)), duration, name, agent=agent)

    def _call(self, agent: str, tool: str, likeness: dict[str, float]) -> tuple[dict[str, object], float]:
        _, spread, kind = TOOLS[agent][tool]
        if kind == "command":
            return self._command(agent, tool, spread, likeness)
        if kind == "poll":
            wait_s = float(self._random.choice([1, 5, 10, 30]))
            duration = min(self._duration(spread, likeness, tool, tool), wait_s)
            return {
                "session_id": int(self._random.integers(99)),
                "chars": "",
                "yield_time_ms": wait_s * 1000,
            }, duration
        examples: dict[str, dict[str, object]] = {
            "path": {"file_path": self._fill("{p}")},
            "pattern": {"pattern": self._fill("{w}.*{v}")},
            "prompt": {
                "description": self._fill("{v} {w}"),
                "prompt": "x" * int(self._random.integers(200, 2000)),
            },
            "query": {"query": self._fill("{w} {v} documentation")},
            "url": {"url": self._fill("https://localhost/{w}")},
            "patch": {"input": "x" * int(self._random.integers(100, 4000))},
        }
        return examples[kind], self._duration(spread, likeness, tool, tool)

    def _command(
        self, agent: str, tool: str, spread: Spread, likeness: dict[str, float]
    ) -> tuple[dict[str, object], float]:
        field = "cmd" if agent == "codex" else "command"
        if self._random.random() < SLEEP_SHARE:
            amount = int(self._random.choice([1, 2, 3, 5, 10, 20, 30, 60, 120, 180]))
            return {field: f"sleep {amount}"}, amount * float(self._random.uniform(1.0, 1.05))
        names = list(COMMANDS)
        kind = names[self._pick([COMMANDS[each][0] for each in names])]
        _, own, examples = COMMANDS[kind]
        # The classes are known for Claude Code; the other agents' shells differ from it by their own
        # quantiles.
        shell = TOOLS["claude-code"]["Bash"][1]
        own = Spread(*(value * mine / theirs for value, mine, theirs in zip(own, spread, shell, strict=True)))
        own = Spread(own.p50, max(own.p90, own.p50 * 1.5), max(own.p99, own.p50 * 4))
        arguments: dict[str, object] = {
            field: self._fill(examples[int(self._random.integers(len(examples)))])
        }
        if self._random.random() < 0.1:
            arguments["timeout"] = int(self._random.choice([30, 60, 120, 300])) * 1000
        return arguments, self._duration(own, likeness, tool, kind)

    def _duration(self, spread: Spread, likeness: dict[str, float], tool: str, kind: str) -> float:
        """Draw from the piecewise log-linear distribution through the quantiles, alike within the session."""
        shared = likeness.setdefault(tool, self._random.standard_normal())
        closer = likeness.setdefault(f"{tool}|{kind}", self._random.standard_normal())
        own = math.sqrt(1 - _SESSION_LIKENESS - _CLASS_LIKENESS) * self._random.standard_normal()
        score = math.sqrt(_SESSION_LIKENESS) * shared + math.sqrt(_CLASS_LIKENESS) * closer + own
        logs = np.log10(spread)
        if score <= 0:
            return 10.0 ** float(logs[0] + score * _LOWER_SPREAD)
        slope = (logs[2] - logs[1]) / (2.3263 - 1.2816)
        beyond = float(logs[2] + (score - 2.3263) * slope)
        return 10.0 ** (float(np.interp(score, (0.0, 1.2816, 2.3263), logs)) if score < 2.3263 else beyond)

    def _pick(self, weights: Sequence[float]) -> int:
        shares = np.cumsum(np.asarray(weights, dtype=np.float64))
        return int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))

    def _fill(self, text: str) -> str:
        first, second = (_WORDS[int(at)] for at in self._random.integers(len(_WORDS), size=2))
        return (
            text.replace("{p}", f"src/{second}/{first}.go")
            .replace("{w}", first)
            .replace("{W}", first.title())
            .replace("{v}", second)
            .replace("{n}", str(int(self._random.integers(1, 9000))))
        )


def fit_generated(predictor: DurationPredictor, waits: int) -> WaitRecords:
    """Fit a predictor on at least so many generated waits; returns them."""
    records = Generator().sessions(waits)
    predictor.fit(records.waits, records.durations, sessions=records.sessions)
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Train a predictor on generated sessions and save it."""
    from sglang_agentcache.predictor.duration import DurationPredictor
    from sglang_agentcache.predictor.store import save

    parser = argparse.ArgumentParser(
        prog="python -m sglang_agentcache.predictor.synthetic", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the artefact")
    parser.add_argument("--waits", type=int, default=40_000, help="generated waits (default: %(default)s)")
    parser.add_argument("--trees", type=int, default=50, help="boosted trees (default: %(default)s)")
    args = parser.parse_args(argv)
    predictor = DurationPredictor(n_trees=args.trees)
    records = fit_generated(predictor, args.waits)
    save(predictor, args.out, {"trained_on": "generated sessions", "waits": len(records)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
