"""A model of how long tools and people take, and of what calls look like: for generated traces, and for gaps
that a recording does not tell.

P50, P90 and P99 are those of public agent runs with timestamps (P10 of the tools is assumed); the
interactive ones include approvals by a person. Names of files, arguments and commands are invented here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Normal scores of P10, P50, P90 and P99: between them a Quantiles is log-normal with changing width.
_SCORES = (-1.2816, 0.0, 1.2816, 2.3263)


@dataclass(frozen=True)
class Quantiles:
    """A positive distribution given by four quantiles, interpolated on a log scale."""

    p10: float
    p50: float
    p90: float
    p99: float
    cap: float = math.inf

    def at(self, score: float) -> float:
        """The value at a standard normal score."""
        logs = [math.log(value) for value in (self.p10, self.p50, self.p90, self.p99)]
        for left in (0, 1, 2):
            if score <= _SCORES[left + 1] or left == 2:
                slope = (logs[left + 1] - logs[left]) / (_SCORES[left + 1] - _SCORES[left])
                return min(self.cap, math.exp(logs[left] + slope * (score - _SCORES[left])))
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class Command:
    """A class of shell commands: how often, how long, how to recognise and to write one."""

    weight: float
    gap: Quantiles
    words: tuple[str, ...]
    """A command that contains one of these is of this class; the first class that fits wins."""
    forms: tuple[str, ...]


SHELL: Mapping[str, Command] = {
    "test": Command(
        12,
        Quantiles(0.9, 4.9, 30.7, 367, 1800),
        ("pytest", " test", "tox", "runtests", "unittest"),
        ("pytest tests/{m} -q", "go test ./{m}/...", "npm test -- {m}", "cargo test {m}"),
    ),
    "install": Command(
        2,
        Quantiles(0.9, 3.8, 31.8, 177, 1800),
        ("install", "npm ci", "uv sync", "apt-get"),
        ("pip install -e .[{m}]", "npm install {m}"),
    ),
    "build": Command(
        7,
        Quantiles(0.5, 2.8, 26.6, 327, 1800),
        ("build", "make", "compile", "tsc"),
        ("make {m}", "go build ./cmd/{m}", "npm run build"),
    ),
    "lint": Command(
        8,
        Quantiles(0.5, 2.4, 7.8, 265, 1800),
        ("lint", "ruff", "mypy", "eslint", "gofmt"),
        ("ruff check {m}", "mypy {m}", "eslint src/{m}"),
    ),
    "commit": Command(
        6, Quantiles(0.8, 6.6, 62.7, 398, 1800), ("git commit",), ('git commit -am "Adjust {m}"',)
    ),
    "remote": Command(
        4,
        Quantiles(1.0, 4.8, 49, 492, 1800),
        ("git push", "git pull", "git fetch", "git clone", "gh ", "curl"),
        ("git push origin {m}", "gh pr view {n}"),
    ),
    "git": Command(
        15, Quantiles(0.05, 0.36, 11, 331, 1800), ("git ",), ("git diff {m}", "git status", "git log -{n}")
    ),
    "python": Command(
        8, Quantiles(0.15, 0.9, 12, 240, 1800), ("python", "node "), ("python scripts/{m}.py --limit {n}",)
    ),
    "look": Command(
        38,
        Quantiles(0.03, 0.43, 9.0, 379, 1800),
        (),
        ("grep -rn {m} src", "ls -la src/{m}", "sed -n 1,{n}p src/{m}.py", "find . -name '{m}*'"),
    ),
}


def classify(command: str) -> str:
    """The class of a shell command, by the words in it."""
    for name, entry in SHELL.items():
        if any(word in command for word in entry.words):
            return name
    return "look"


@dataclass(frozen=True)
class Tool:
    """A tool of an agent. ``gap`` None: a shell, whose commands decide how long it takes."""

    weight: float
    gap: Quantiles | None
    arguments: Mapping[str, str]
    """Argument name -> form; ``{m}`` becomes a module name, ``{n}`` a number."""
    human: bool = False


_MODULES = (
    *("ledger", "router", "parser", "session", "tariff", "render", "queue", "mailer", "schema", "cursor"),
    *("widget", "ingest", "policy", "replay", "digest", "locale", "export", "voucher", "atlas", "beacon"),
)


def _write(form: str, rng: np.random.Generator) -> str:
    return form.format(m=_MODULES[rng.integers(len(_MODULES))], n=int(rng.integers(2, 400)))


def call(tool: Tool, rng: np.random.Generator) -> tuple[str, Quantiles]:
    """Invent one call: its arguments as JSON text, and how long it takes."""
    if tool.gap is not None:
        return json.dumps({key: _write(form, rng) for key, form in tool.arguments.items()}), tool.gap
    names = list(SHELL)
    weights = np.array([SHELL[name].weight for name in names])
    chosen = SHELL[names[rng.choice(len(names), p=weights / weights.sum())]]
    command = _write(chosen.forms[rng.integers(len(chosen.forms))], rng)
    return json.dumps({"command": command}), chosen.gap


def _tool(
    weight: float, gap: tuple[float, float, float, float], human: bool = False, **arguments: str
) -> Tool:
    return Tool(weight, Quantiles(*gap, 3600), arguments, human)


CODING_TOOLS: Mapping[str, Tool] = {
    "run_shell": Tool(40, None, {}),
    "view_file": _tool(22, (0.005, 0.023, 0.28, 2.9), path="src/{m}/{m}.py", offset="{n}"),
    "edit_file": _tool(18, (0.01, 0.053, 5.07, 228), path="src/{m}/{m}.py"),
    "search_code": _tool(8, (0.08, 0.37, 0.75, 4.0), pattern="def {m}_"),
    "write_file": _tool(2.5, (0.01, 0.038, 6.7, 217), path="src/{m}/{m}_{n}.py"),
    "list_files": _tool(1.5, (0.1, 0.41, 1.8, 7.3), glob="**/{m}*.py"),
    "delegate": _tool(1, (8, 60, 577, 3600), task="Check how {m} uses {m}"),
    "ask_person": _tool(0.3, (12, 61, 460, 1582), True, question="Keep {m}?"),
    "search_web": _tool(0.3, (3, 20, 65, 300), query="{m} format"),
}
BENCH_TOOLS: Mapping[str, Tool] = {"bash": Tool(1, None, {})}
SERVICE_TOOLS: Mapping[str, Tool] = {
    "find_customer": _tool(3, (0.001, 0.01, 0.5, 1.2), email="{m}{n}@shop.example"),
    "get_booking": _tool(4, (0.001, 0.01, 0.5, 1.2), booking="B{n}"),
    "change_booking": _tool(2, (0.001, 0.02, 0.6, 1.4), booking="B{n}", item="{m}"),
    "refund": _tool(1, (0.001, 0.02, 0.6, 1.4), booking="B{n}"),
    "transfer_to_person": _tool(0.3, (0.001, 0.02, 0.6, 1.4), summary="{m}"),
}
SHELL_TOOL_NAMES = ("run_shell", "bash", "Bash", "exec_command", "shell")
