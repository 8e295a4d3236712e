"""`--agentcache-admission auto` on a real server: who waits, who passes, and what those who leave leave behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import Config, Running, on

AUTO = Config(
    "admission-auto",
    ("--radix-eviction-policy", "rr", "--agentcache-admission", "auto"),
    pool_tokens=4_096,
)
pytestmark = on(AUTO)
HISTORY = 1_200
INSIDE = 5
HOLDER_TOKENS = 2_000


def door(client: Client) -> dict[str, Any]:
    state: dict[str, Any] = client.state()["admission"]
    return state


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def closed(client: Client, rng: random.Random, name: str) -> Iterator[list[list[int]]]:
    """Trajectories of half as much again as the pool holds are inside, and one of them is running.

    That closes the door until somebody has returned: then it learns that prefill is cheap here. So the test with
    continuations comes last.

    Yields the histories of those that are idle.
    """
    histories = [random_tokens(rng, HISTORY) for _ in range(INSIDE)]
    for number, history in enumerate(histories):
        history += client.generate(history, f"{name}{number}").output_ids
    with client.streaming(random_tokens(rng, 300), f"{name}-holder", HOLDER_TOKENS) as stream:
        next(stream)
        yield histories
    for number in range(INSIDE):
        client.complete(f"{name}{number}")
    client.complete(f"{name}-holder")


@pytest.mark.parametrize("way", ["disconnect", "abort", "abort all"])
def test_a_client_that_leaves_at_the_door_leaves_nothing(
    server: Running, client: Client, rng: random.Random, way: str
) -> None:
    name = way.replace(" ", "-")
    body = client.generate_body(random_tokens(rng, HISTORY), f"{name}-late", 1)
    answers: list[Any] = []

    def send() -> None:
        timeout = 3.0 if way == "disconnect" else 60.0
        try:
            answers.append(client.send("/generate", {**body, "rid": name}, timeout=timeout).json())
        except OSError as error:
            answers.append(error)

    with closed(client, rng, name):
        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: door(client)["waiting"] == 1)
        if way == "abort":
            client.post("/abort_request", {"rid": name})
        elif way == "abort all":
            client.post("/abort_request", {"rid": "", "abort_all": True})
        thread.join(60)
        until(lambda: door(client)["waiting"] == 0)
    (answer,) = answers
    if way == "disconnect":
        assert isinstance(answer, OSError)
    else:
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert client.complete(f"{name}-late")["released_tokens"] == 0
    assert client.free_tokens() == server.config.pool_tokens
    server.assert_clean()


def test_newcomers_wait_in_order_while_continuations_pass(
    server: Running, client: Client, rng: random.Random
) -> None:
    let_in = sum(door(client)["let_in"].values())
    entered: list[str] = []

    def newcomer(name: str) -> None:
        client.generate(random_tokens(rng, HISTORY), name)
        entered.append(name)

    with ThreadPoolExecutor(2) as pool:
        sent: list[Future[None]] = []
        with closed(client, rng, "order") as histories:
            for name in ("first", "second"):
                sent.append(pool.submit(newcomer, name))
                until(lambda: door(client)["waiting"] == len(sent))
            client.generate(histories[0] + random_tokens(rng, 20), "order0")
            client.generate(random_tokens(rng, 20))
            client.generate(random_tokens(rng, 20), "child", hints={"parent_id": "order1"})
            state = door(client)
            assert state["waiting"] == 2
            assert state["oldest_wait_s"] > 0
            assert entered == []
        # The holder's client is gone, so there is nothing else to do.
        for future in sent:
            future.result(60)
    assert entered == ["first", "second"]
    state = door(client)
    assert state["waiting"] == 0
    assert sum(state["let_in"].values()) == let_in + INSIDE + 3
    for name in ("first", "second", "child"):
        client.complete(name)
    server.assert_clean()
