"""Agents for twice the pool, some of which leave in mid-request: nothing sticks, nobody starves, nothing leaks.

`AGENTCACHE_OVERLOAD_S=900` runs it for a quarter of an hour.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
import requests

from tests.support.e2e_client import Client, events, random_tokens
from tests.support.e2e_servers import START_S, Config, Running, on

SECONDS = float(os.environ.get("AGENTCACHE_OVERLOAD_S", "20"))
POOL, BATCH, PATIENCE = 2_048, 256, 2
OVERLOAD = Config(
    "overload",
    (
        *("--radix-eviction-policy", "convex", "--radix-eviction-policy-config", '{"chunk_tokens": 128}'),
        *("--schedule-policy", "prefix-aware", "--agentcache-patience", str(PATIENCE)),
        *("--agentcache-admission", "auto"),
        *("--chunked-prefill-size", str(BATCH), "--schedule-conservativeness", "0.1"),
    ),
    pool_tokens=POOL,
)
AGENTS = 16
TURNS = 6
FIRST_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = (60, 240), (10, 60), (1, 48)
LONG_OUTPUT_TOKENS = 320
"""Of one answer in four: several of them outgrow the pool together, and the server has to retract."""
MOST_ROUNDS = 4
STUCK_S = 60.0
"""More than any request may need once the load is over."""
STEP_S = 0.05
"""Times of two requests that are closer than this say nothing of their order: one step may have seen both."""


@dataclass
class Sent:
    """One request that was answered. Times are the scheduler's."""

    prompt_tokens: int
    opening: bool
    """First of its trajectory: it may have waited at the door."""
    queued_at: float = 0.0
    served_at: float = 0.0
    uncached: int = 0
    retractions: int = 0


@dataclass
class Load:
    """Agents that come, work for some turns and go, until `until` (time.monotonic) in each round."""

    client: Client
    until: float
    answered: list[Sent] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    rounds: int = 0

    def run(self) -> None:
        """All agents at once, for a round."""
        self.until = time.monotonic() + SECONDS
        self.rounds += 1
        threads = [threading.Thread(target=self.agent, args=(number,)) for number in range(AGENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + 2 * STUCK_S)
        assert not any(thread.is_alive() for thread in threads), "a request is stuck"

    def agent(self, number: int) -> None:
        rng = random.Random(f"{number}.{self.rounds}")
        generation = 0
        try:
            while time.monotonic() < self.until:
                generation += 1
                self._trajectory(rng, f"agent{number}-{self.rounds}-{generation}")
        except Exception as error:
            self.problems.append(f"{number}.{generation}: {error!r}")

    def _trajectory(self, rng: random.Random, name: str) -> None:
        history = random_tokens(rng, rng.randint(*FIRST_TOKENS))
        turns = rng.randint(1, TURNS)
        for turn in range(turns):
            how = rng.choices(("answered", "disconnected", "impatient", "aborted"), (16, 2, 1, 1))[0]
            final = turn == turns - 1 and rng.random() < 0.5
            output = self._request(rng, name, history, turn == 0, how, final)
            self.ends[how] += 1
            if output is None:
                break
            history = history + output + random_tokens(rng, rng.randint(*NEW_TOKENS))
            time.sleep(rng.choice((0.0, 0.02, 0.2)))
        if rng.random() < 0.3:
            self.client.complete(name)

    def _request(
        self, rng: random.Random, name: str, history: list[int], opening: bool, how: str, final: bool
    ) -> list[int] | None:
        """One turn; its output, or None if the client did not wait for the end."""
        rid = f"{name}-{len(history)}"
        tokens = LONG_OUTPUT_TOKENS if rng.random() < 1 / 4 else rng.randint(*OUTPUT_TOKENS)
        sent = Sent(len(history), opening)
        began = False
        body = self.client.generate_body(
            history, name, tokens, {"final": final}, overcommit=True, rid=rid, stream=True
        )
        timeout = 0.03 if how == "impatient" else STUCK_S + SECONDS
        try:
            with self.client.send("/generate", body, stream=True, timeout=timeout) as response:
                assert response.ok, response.text
                output: list[int] = []
                for answer in events(response):
                    if how == "aborted" and not began:
                        self.client.send("/abort_request", {"rid": rid})
                    began = True
                    if how == "disconnected":
                        return None
                    assert "error" not in answer, answer
                    output, meta = answer["output_ids"], answer["meta_info"]
        except (requests.exceptions.Timeout, requests.exceptions.ConnectionError) as error:
            if how != "impatient" or "timed out" not in str(error):
                raise
            return None
        if how != "answered":
            return None
        assert len(output) == tokens, (len(output), tokens, meta)
        sent.uncached = sent.prompt_tokens - meta["cached_tokens"]
        sent.retractions = meta["num_retractions"]
        sent.served_at = meta["forward_entry_time"]
        sent.queued_at = sent.served_at - meta["queue_time"]
        self.answered.append(sent)
        return output


def overtaken_by(sent: Sent, others: list[Sent]) -> int:
    """Tokens prefilled for requests that certainly came later and were served earlier."""
    return sum(
        other.uncached
        for other in others
        # The times of one that was retracted are not those of its first turn in the queue.
        if not other.retractions
        and other.queued_at > sent.queued_at + STEP_S
        and other.served_at < sent.served_at - STEP_S
    )


@pytest.mark.slow
@pytest.mark.timeout(START_S + MOST_ROUNDS * (SECONDS + 2 * STUCK_S))
@on(OVERLOAD)
def test_overload_with_clients_that_leave(server: Running, client: Client) -> None:
    load = Load(client, 0.0)
    # Whether a round has a retraction depends on who decodes when.
    for _ in range(MOST_ROUNDS):
        load.run()
        assert not load.problems
        if "Retract requests" in server.log_text():
            break
    state = client.settled()
    print(dict(load.ends), state["counters"], state["admission"])
    # It was what it is meant to be.
    assert all(load.ends[how] for how in ("answered", "disconnected", "impatient", "aborted")), load.ends
    assert state["counters"]["tail_chunks"] > 0
    assert "Retract requests" in server.log_text()
    # Who passed no door was overtaken by no more than `order.py` promises (all of its prompt counted as new).
    for sent in load.answered:
        if not sent.opening and not sent.retractions:
            assert overtaken_by(sent, load.answered) <= PATIENCE * sent.prompt_tokens + BATCH, sent
    assert state["admission"]["waiting"] == 0
