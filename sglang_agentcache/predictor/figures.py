"""Published figures of recorded agent runs: what the generated sessions are drawn from.

Quantiles in seconds and numbers of calls, of 64,194 recorded turns of Claude Code, Codex and OpenCode. The
commands are made up here; no recorded text is used.
"""

from __future__ import annotations

from typing import NamedTuple


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
