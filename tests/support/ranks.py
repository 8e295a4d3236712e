"""Two ranks made unlike each other (`ranks_site`), agents that keep them evicting, and what the ranks wrote down."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import requests

from tests.support.e2e_client import SETTLE_S, Client, random_tokens
from tests.support.e2e_servers import Config, Running, running

SITE = Path(__file__).parent / "ranks_site"
FOLDER = "AGENTCACHE_TEST_FOLDER"
"""As in `ranks_site/unlike_ranks.py`, which only a scheduler can import."""
AGENTS_AT_ONCE = 6
AGENTS_EACH = 5
TOOLS: tuple[tuple[str, str], ...] = (
    ("bash", '{"command": "ls"}'),
    ("bash", '{"command": "sleep 20"}'),
    ("bash", '{"command": "pytest -q tests"}'),
    ("read_file", '{"path": "setup.py"}'),
    ("ask", "{}"),
)


class Decision(NamedTuple):
    """The first line in which two records differ; None where one has ended."""

    line: int
    by_rank: tuple[str | None, ...]


class Records:
    """What the ranks of one server have written so far."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self.ranks = range(ranks)

    def own(self) -> list[dict[str, Any]]:
        """What is each rank's own: `hash` of a string, `hash_seed`, `pid`."""
        return [json.loads((self.folder / f"rank{rank}.json").read_text()) for rank in self.ranks]

    def decisions(self) -> list[list[str]]:
        """Whole lines only."""
        texts = [(self.folder / f"rank{rank}.decisions").read_text() for rank in self.ranks]
        return [text[: text.rfind("\n") + 1].splitlines() for text in texts]

    def count(self, kind: str) -> int:
        """Decisions of one kind on the rank that has made the fewest."""
        return min(sum(line.startswith(kind + " ") for line in lines) for lines in self.decisions())

    def settled(self) -> Records:
        """Once no rank has decided more than another, for one may work a little behind; or as they are, if never."""
        deadline = time.monotonic() + SETTLE_S
        while len({len(lines) for lines in self.decisions()}) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        return self

    def own_clocks(self) -> list[list[float]]:
        """By how many seconds each rank's clock was ahead, at moments of its own."""
        out = []
        for rank in self.ranks:
            rows = (self.folder / f"rank{rank}.clocks").read_text().splitlines()
            samples = [[float(value) for value in row.split()] for row in rows]
            out.append([own - true for true, own in samples])
        return out

    def first_difference(self, kind: str = "", *, whole: bool = True) -> Decision | None:
        """Where the ranks first decided differently.

        Args:
            kind: look at decisions of this kind only.
            whole: also if one has decided more than another, which is no difference while they work.
        """
        chosen = [[line for line in lines if line.startswith(kind)] for lines in self.decisions()]
        for line, made in enumerate(zip_longest(*chosen)):
            if None in made and not whole:
                return None
            if len(set(made)) > 1:
                return Decision(line, made)
        return None

    def let_own_clocks_decide(self) -> None:
        (self.folder / "own-clocks").touch()


@contextmanager
def unlike_ranks(config: Config, model: Path, folder: Path) -> Iterator[tuple[Running, Records]]:
    """Start the server of `config` with ranks that have nothing of their own in common."""
    environment = (
        *config.environment,
        ("PYTHONPATH", os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))),
        (FOLDER, str(folder)),
        # On one rank only.
        ("SGLANG_AGENTCACHE_CALL_LOG", str(folder / "calls.jsonl")),
    )
    # SGLang's own watchdog and metrics do not stand clocks that jump.
    config = replace(
        config,
        arguments=(*config.arguments, "--watchdog-timeout", "1000000"),
        environment=environment,
        metrics=False,
    )
    with running(config, model, folder / "server.log") as server:
        yield server, Records(folder, config.ranks)


class Agents:
    """Threads of agents that take turns, complete, and reload predictors, until the block ends.

    Args:
        artefacts: predictors to switch between; none for a policy that uses none.
    """

    def __init__(self, client: Client, artefacts: Sequence[Path], seed: int) -> None:
        self.client = client
        self.artefacts = artefacts
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(self._live, random.Random(f"{seed}-{number}"), number)
            )
            for number in range(AGENTS_AT_ONCE)
        ]
        if artefacts:
            self._threads.append(threading.Thread(target=self._guarded, args=(self._reload,)))

    def __enter__(self) -> Agents:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Any, *args: Any) -> None:
        try:
            work(*args)
        except (requests.RequestException, AssertionError) as failure:
            self.failure = failure
            self._stop.set()

    def _live(self, rng: random.Random, number: int) -> None:
        histories: list[tuple[str, list[int]]] = [("", [])] * AGENTS_EACH
        born = 0
        while not self._stop.is_set():
            at = rng.randrange(AGENTS_EACH)
            name, history = histories[at]
            if not name:
                born += 1
                name = f"agent-{number}-{born}"
            prompt = history + random_tokens(rng, rng.randrange(20, 160))
            reply = self.client.generate(prompt, name, rng.choice((1, 1, 1, 6)), hints=self._hints(rng))
            histories[at] = name, prompt + reply.output_ids
            if len(prompt) > 700 or rng.random() < 0.03:
                histories[at] = "", []
                if rng.random() < 0.7:
                    self.client.complete(name)
            self._stop.wait(rng.random() * 0.02)

    @staticmethod
    def _hints(rng: random.Random) -> dict[str, Any]:
        kind = rng.random()
        if kind < 0.15:  # the server reads the output for itself
            return {}
        if kind < 0.2:
            return {"expected_idle_s": rng.choice((0.5, 5.0, 60.0))}
        calls = [rng.choice(TOOLS) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}

    def _reload(self) -> None:
        while not self._stop.is_set():
            for path in self.artefacts:
                self.client.post("/agentcache/predictor", {"path": str(path)})
                self._stop.wait(0.7)


def wait_until(reached: Any, agents: Agents, timeout_s: float) -> None:
    """Wait for a condition; an agent that fails, or the time running out, fails the test."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert agents.failure is None, agents.failure
        assert time.monotonic() < deadline, "the server hangs, or is far too slow"
        time.sleep(0.5)


def diverged(server: Running, records: Records, agents: Agents, timeout_s: float) -> bool:
    """Wait until the ranks differ: in what they cut, or by the word of SGLang's checker, which stops the server.

    Returns:
        whether they did before the time ran out.
    """

    def differ() -> bool:
        found = records.first_difference("cut", whole=False) is not None
        return found or "Found rank divergence" in server.log_text()

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and agents.failure is None and not differ():
        time.sleep(0.5)
    return differ()
