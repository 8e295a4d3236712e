"""The order of service of `--schedule-policy prefix-aware` on a real server, which runs one request at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.support.e2e_client import Client, Reply, random_tokens
from tests.support.e2e_servers import PREFIX_AWARE, Running, on

pytestmark = on(PREFIX_AWARE)

COLD, NEW, HISTORY = 1_000, 100, 300
PATIENCE = 0.3
BUSY_TOKENS = 1_500


class Backlog:
    """Requests that wait while another one runs; sent one after the other, each when the last one is queued."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool
        self.replies: dict[str, Future[Reply]] = {}

    def send(self, name: str, prompt: list[int], tokens: int = 1, **body: object) -> None:
        self.replies[name] = self._pool.submit(self._client.generate, prompt, name, tokens, **body)

    def wait_queued(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while (waiting := self._load("num_waiting_reqs")) != count:
            assert time.monotonic() < deadline, f"{waiting} waiting, not {count}"

    def wait_running(self) -> None:
        deadline = time.monotonic() + 60
        while not self._load("num_running_reqs"):
            assert time.monotonic() < deadline

    def _load(self, name: str) -> int:
        return int(self._client.get("/v1/loads").json()["loads"][0][name])

    def served(self) -> list[str]:
        """Names in the order in which their requests ended."""
        ends = {name: reply.result().meta["request_finished_ts"] for name, reply in self.replies.items()}
        return sorted(ends, key=ends.__getitem__)


@contextmanager
def backlog(client: Client, rng: random.Random) -> Iterator[Backlog]:
    """Behind a request that decodes for a while."""
    with ThreadPoolExecutor(16) as pool:
        waiting = Backlog(client, pool)
        waiting.send("busy", random_tokens(rng, 20), BUSY_TOKENS)
        waiting.wait_running()
        yield waiting


def agents(client: Client, rng: random.Random, count: int) -> dict[str, list[int]]:
    """Idle agents: their histories by name."""
    histories = {}
    for number in range(count):
        prompt = random_tokens(rng, HISTORY)
        histories[f"agent-{number}"] = prompt + client.generate(prompt, f"agent-{number}").output_ids
    return histories


def test_continuations_pass_a_cold_prompt_until_it_is_due(
    server: Running, client: Client, rng: random.Random
) -> None:
    histories = agents(client, rng, 6)
    with backlog(client, rng) as waiting:
        waiting.send("cold", random_tokens(rng, COLD))
        waiting.wait_queued(1)
        for count, (name, history) in enumerate(histories.items(), 2):
            waiting.send(name, history + random_tokens(rng, NEW))
            waiting.wait_queued(count)
    served = waiting.served()
    passed = served.index("cold") - 1
    assert served == ["busy", *list(histories)[:passed], "cold", *list(histories)[passed:]]
    # As many as the bound lets pass, and no more: it is due at 300 tokens, each brings 101.
    assert passed == -(-PATIENCE * COLD // (NEW + 1)) == 3
    for name, history in histories.items():
        assert waiting.replies[name].result().cached == len(history) - 1


def test_a_smaller_cold_prompt_passes_a_larger_one_and_equal_ones_keep_their_order(
    server: Running, client: Client, rng: random.Random
) -> None:
    with backlog(client, rng) as waiting:
        for count, (name, length) in enumerate(
            [("large", 900), ("small", 50), ("equal-1", 60), ("equal-2", 60)], 1
        ):
            waiting.send(name, random_tokens(rng, length))
            waiting.wait_queued(count)
    assert waiting.served() == ["busy", "small", "equal-1", "equal-2", "large"]


def test_priority_goes_before_work_and_still_preempts(
    server: Running, client: Client, rng: random.Random
) -> None:
    with backlog(client, rng) as waiting:
        waiting.send("small", random_tokens(rng, 30))
        waiting.wait_queued(1)
        waiting.send("urgent", random_tokens(rng, COLD), priority=100)
        waiting.replies["urgent"].result()
        assert not waiting.replies["busy"].done()
        waiting.send("another", random_tokens(rng, 40))
    served = waiting.served()
    assert served[0] == "urgent"
    assert set(served) == {"urgent", "busy", "small", "another"}
    assert len(waiting.replies["busy"].result().output_ids) == BUSY_TOKENS


def test_a_waiting_client_that_goes_away_leaves_nothing_behind(
    server: Running, client: Client, rng: random.Random
) -> None:
    with backlog(client, rng) as waiting:
        waiting.send("first", random_tokens(rng, 200))
        waiting.wait_queued(1)
        with pytest.raises(Exception, match="timed out"):
            body = client.generate_body(random_tokens(rng, 100), "gone", 1)
            client.send("/generate", body, timeout=0.3)
        waiting.wait_queued(1)
        waiting.send("last", random_tokens(rng, 300))
    assert waiting.served() == ["busy", "first", "last"]
