"""`python -m sglang_agentcache.complete`: tell servers that trajectories have ended, so that they release them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import requests

PATH = "/agentcache/complete"
TIMEOUT_S = 30.0


class Answer(NamedTuple):
    """What one server said of one trajectory; `known` is None if it did not answer the question."""

    known: bool | None
    text: str


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m sglang_agentcache.complete",
        description="Release the KV of trajectories that have ended, on every server named (with PD: on every "
        "prefill worker, and on decode workers that keep a radix cache). The exit code is 0 if all servers "
        "answered and each trajectory was known to one of them, 1 if not.",
    )
    add = made.add_argument
    add("--url", action="append", required=True, metavar="URL", help="of a server; repeat it for several")
    add("--trajectory", action="append", required=True, metavar="ID", help="repeat it for several")
    add("--extra-key", help="the namespace: the extra_key of its requests")
    add("--cache-salt", help="the namespace: the cache_salt of its requests")
    add("--api-key-file", type=Path, metavar="FILE", help="holds the servers' API key (or their admin key)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Ask every server and print one line per server and trajectory; returns the exit code."""
    args = parser().parse_args(argv)
    headers = {}
    if args.api_key_file is not None:
        try:
            headers["Authorization"] = f"Bearer {args.api_key_file.read_text().strip()}"
        except OSError as error:
            print(f"--api-key-file: {error}", file=sys.stderr)
            return 1
    namespace = {"extra_key": args.extra_key, "cache_salt": args.cache_salt}
    questions = [
        (url.rstrip("/"), {"trajectory_id": name, **namespace})
        for name in dict.fromkeys(args.trajectory)
        for url in dict.fromkeys(args.url)
    ]
    with ThreadPoolExecutor(min(len(questions), 32)) as pool:
        answers = list(pool.map(lambda question: ask(question[0], question[1], headers), questions))
    for (url, body), answer in zip(questions, answers, strict=True):
        print(f"{url}: {body['trajectory_id']}: {answer.text}")
    known = {
        body["trajectory_id"] for (_, body), answer in zip(questions, answers, strict=True) if answer.known
    }
    answered = all(answer.known is not None for answer in answers)
    return 0 if answered and known == set(args.trajectory) else 1


def ask(url: str, body: dict[str, str | None], headers: dict[str, str]) -> Answer:
    """Complete one trajectory on one server."""
    try:
        response = requests.post(url + PATH, json=body, headers=headers, timeout=TIMEOUT_S)
        if not response.ok:
            return Answer(None, f"failed: HTTP {response.status_code}: {response.text[:300]}")
        said = response.json()
        if not said["known"]:
            return Answer(False, "unknown here")
        return Answer(
            True,
            f"released {said['released_tokens']} tokens, {said['deferred_tokens']} more when they are unlocked",
        )
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        return Answer(None, f"failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
