"""Generated agent sessions, from published figures only: what the default predictor is trained on.

The quantiles (P50, P90, P99 in seconds) and the shares of tools and of command classes are those of 64,194 recorded
turns of Claude Code, Codex and OpenCode. No recorded text is used: commands and paths are made up here.

``python -m sglang_agentcache.predictor.synthetic --out DIR`` trains the artefact that the package ships.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sglang_agentcache.predictor.records import WaitRecords
from sglang_agentcache.predictor.tool_calls import ToolCall, Wait


class Spread(NamedTuple):
    """P50, P90 and P99 of a class of durations, seconds."""

    p50: float
    p90: float
    p99: float


#: Shell command classes of Claude Code: share of the calls, quantiles, example commands.
COMMANDS: dict[str, tuple[float, Spread, tuple[str, ...]]] = {
    "go test": (
        2574,
        Spread(4.9, 30.7, 367),
        (
            "go test ./...",
            "go test ./pkg/{w} -run Test{W}",
            "go test ./internal/{w}/... -race",
            "go test -count=1 ./{w}",
        ),
    ),
    "commit": (
        980,
        Spread(6.6, 62.7, 398),
        (
            'git add -A && git commit -m "{w} {v}"',
            'git commit -m "fix {w}"',
            "git add {p} && git commit -m 'add {v}'",
        ),
    ),
    "remote": (
        574,
        Spread(4.8, 49, 492),
        (
            "git push origin {w}",
            "git fetch origin",
            "git pull --rebase",
            "git clone {w}",
            "git push -u origin {w}",
        ),
    ),
    "gh": (
        707,
        Spread(2.2, 21.6, 448),
        (
            "gh pr view {n}",
            "gh pr create --fill",
            "gh run list --limit 5",
            "gh api repos/{w}/{v}",
            "gh pr checks {n}",
        ),
    ),
    "build": (
        827,
        Spread(2.8, 26.6, 327),
        (
            "go build ./...",
            "npm run build",
            "make build",
            "cargo build --release",
            "mise run build",
            "bun run build",
        ),
    ),
    "lint": (
        1224,
        Spread(2.4, 7.8, 265),
        (
            "golangci-lint run ./...",
            "npm run lint",
            "ruff check .",
            "mise run lint",
            "gofmt -l .",
            "npx eslint src",
        ),
    ),
    "js test": (
        311,
        Spread(1.5, 14, 120),
        ("npm test", "npx vitest run {p}", "pnpm test", "bun test {w}", "npx jest --runInBand {w}"),
    ),
    "install": (
        107,
        Spread(3.8, 31.8, 177),
        ("npm install", "pip install -r requirements.txt", "pnpm add {w}", "go mod tidy", "brew install {w}"),
    ),
    "git": (
        2974,
        Spread(0.36, 11, 331),
        (
            "git status",
            "git diff --stat",
            "git log --oneline -10",
            "git show HEAD",
            "git diff {p}",
            "git branch -a",
            "git checkout {w}",
            "git stash list",
            "git status --short",
        ),
    ),
    "files": (
        4604,
        Spread(0.43, 9, 379),
        (
            "ls -la {p}",
            "grep -rn {w} src",
            "cat {p}",
            "find . -name '*.{w}'",
            "sed -n '1,120p' {p}",
            "rg -n {w}",
            "wc -l {p}",
            "head -50 {p}",
            "ls",
            "grep -n {w} {p} | head -20",
        ),
    ),
    "other": (
        2000,
        Spread(1.89, 23.4, 442),
        (
            "python3 {p}",
            "node {p}",
            "curl -s localhost:{n}",
            "docker ps",
            "mkdir -p {w}",
            "chmod +x {p}",
            "python -c '{w}'",
            "mise run test",
            "pytest -q {p}",
            "docker compose up -d",
        ),
    ),
}

#: Tools by agent: calls seen, quantiles, kind of arguments.
TOOLS: dict[str, dict[str, tuple[float, Spread, str]]] = {
    "claude-code": {
        "Bash": (17113, Spread(1.89, 23.4, 442), "command"),
        "Read": (8612, Spread(0.023, 0.28, 2.9), "path"),
        "Edit": (8502, Spread(0.053, 5.07, 228), "path"),
        "Grep": (3665, Spread(0.37, 0.75, 4.0), "pattern"),
        "Write": (1063, Spread(0.038, 6.7, 217), "path"),
        "Glob": (569, Spread(0.41, 1.8, 7.3), "pattern"),
        "Task": (267, Spread(72.9, 577, 9256), "prompt"),
        "Agent": (193, Spread(10.3, 606, 3110), "prompt"),
        "AskUserQuestion": (117, Spread(61, 460, 1582), "prompt"),
        "WebSearch": (105, Spread(23.7, 62.6, 172), "query"),
        "WebFetch": (91, Spread(8.6, 93.7, 706), "url"),
    },
    "codex": {
        "exec_command": (4543, Spread(0.37, 3.84, 41.6), "command"),
        "apply_patch": (1207, Spread(0.063, 0.25, 2.6), "patch"),
        "write_stdin": (1023, Spread(2.0, 30.0, 56.9), "poll"),
    },
    "opencode": {
        "read": (2581, Spread(0.003, 0.007, 0.016), "path"),
        "bash": (1143, Spread(0.61, 2.9, 9.2), "command"),
    },
}

#: A person's pause, P50/P90/P99 in seconds, and the share of turns that a person triggers.
PERSON = Spread(80, 1028, 36114)
PERSON_SHARE = 0.12
#: Turns of a session: P50 and P90.
TURNS = (14, 117)
#: Share of the sleep calls among shell commands; they last what they say.
SLEEP_SHARE = 135 / 17113
# How alike the calls of one session are (correlation of the normal scores): of one tool, and of one command class.
_SESSION_LIKENESS, _CLASS_LIKENESS = 0.2, 0.35
# The figures begin at the median; below it a class is taken to narrow like this (log10 seconds per normal score).
_LOWER_SPREAD = 0.45
_WORDS = (
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
    "worker",
)


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
        # The classes are known for Claude Code; the other agents' shells differ from it by their own quantiles.
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


def main(argv: Sequence[str] | None = None) -> int:
    """Train a predictor on generated sessions and save it."""
    from sglang_agentcache.predictor.duration import DurationPredictor
    from sglang_agentcache.predictor.store import save

    parser = argparse.ArgumentParser(
        prog="python -m sglang_agentcache.predictor.synthetic", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the artefact")
    parser.add_argument("--waits", type=int, default=40_000, help="generated waits (default: %(default)s)")
    parser.add_argument("--trees", type=int, default=100, help="boosted trees (default: %(default)s)")
    args = parser.parse_args(argv)
    records = Generator().sessions(args.waits)
    predictor = DurationPredictor(n_trees=args.trees)
    predictor.fit(records.waits, records.durations, sessions=records.sessions)
    save(predictor, args.out, {"trained_on": "generated sessions", "waits": len(records)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
