"""A client of one running server: requests of agents, and what the server says about itself."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import requests

from eval.counters import agentcache_states

TIMEOUT_S = 180.0
SETTLE_S = 30.0
TEXT_TOKENS = 250  # below the special tokens of the tiny model


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1, TEXT_TOKENS) for _ in range(count)]


class Reply(NamedTuple):
    """The answer to one `generate`; `cached` counts prompt tokens that were not computed."""

    output_ids: list[int]
    cached: int
    meta: dict[str, Any]


class Client:
    """Speaks to the server at `url`; every failed request raises."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    # ---- raw HTTP ----

    def send(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> requests.Response:
        """POST JSON; the answer may have any status."""
        options.setdefault("timeout", TIMEOUT_S)
        return requests.post(
            self.url + path, json=body, headers={**self.headers, **(headers or {})}, **options
        )

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """POST JSON; return the JSON of the answer, or its text."""
        response = self.send(path, body, headers)
        assert response.ok, f"{path}: {response.status_code} {response.text}"
        return response.json() if "json" in response.headers.get("content-type", "") else response.text

    def get(self, path: str) -> requests.Response:
        response = requests.get(self.url + path, headers=self.headers, timeout=TIMEOUT_S)
        response.raise_for_status()
        return response

    # ---- generation ----

    def generate(
        self,
        prompt: Sequence[int],
        trajectory: str | None = None,
        tokens: int = 1,
        *,
        hints: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        **body: Any,
    ) -> Reply:
        """Greedy generation of exactly `tokens` tokens through `/generate`."""
        answer = self.post(
            "/generate", self.generate_body(prompt, trajectory, tokens, hints, **body), headers
        )
        return Reply(answer["output_ids"], answer["meta_info"]["cached_tokens"], answer["meta_info"])

    @contextmanager
    def streaming(
        self, prompt: Sequence[int], trajectory: str | None = None, tokens: int = 1, **body: Any
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed `/generate`; leaving early closes the connection."""
        body = self.generate_body(prompt, trajectory, tokens, None, stream=True, **body)
        with self.send("/generate", body, stream=True) as response:
            assert response.ok, response.text
            yield events(response)

    @staticmethod
    def generate_body(
        prompt: Sequence[int],
        trajectory: str | None,
        tokens: int,
        hints: Mapping[str, Any] | None = None,
        overcommit: bool = False,
        **body: Any,
    ) -> dict[str, Any]:
        """The body of such a request. For `ignore_eos` SGLang sets memory aside for all tokens before it
        starts; with `overcommit` it hopes for the best, as in ordinary use, and may have to retract."""
        params: dict[str, Any] = {"max_new_tokens": tokens, "temperature": 0}
        params |= {"min_new_tokens": tokens} if overcommit else {"ignore_eos": True}
        payload = dict(hints or {})
        if trajectory is not None:
            payload["trajectory_id"] = trajectory
        if payload:
            params["custom_params"] = {"agentcache": payload}
        return {"input_ids": list(prompt), "sampling_params": params, **body}

    def complete(self, trajectory: str, **namespace: str) -> dict[str, Any]:
        """`POST /agentcache/complete`."""
        return self.post("/agentcache/complete", {"trajectory_id": trajectory, **namespace})

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """The `agentcache` section of `/server_info`."""
        (state,) = agentcache_states(self.get("/server_info").json())
        return state

    def settled(self) -> dict[str, Any]:
        """The state once nothing runs and nothing is locked any more; the last state if that never comes."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            state = self.state()
            if not state["trajectories"]["active"] and not state["pool"]["locked_tokens"]:
                return state
            if time.monotonic() > deadline:
                return state
            time.sleep(0.1)

    def free_tokens(self) -> int:
        return int(self.settled()["pool"]["free_tokens"])

    def flush(self) -> None:
        """Empty the cache; the server must be idle for that."""
        deadline = time.monotonic() + SETTLE_S
        while not (response := self.send("/flush_cache")).ok:
            assert time.monotonic() < deadline, response.text
            time.sleep(0.1)

    @contextmanager
    def counted_sources(self) -> Iterator[Counter[str]]:
        """How many requests were identified by which source inside the block; filled at its end."""
        seen: Counter[str] = Counter()
        before = Counter(self.state()["counters"])
        yield seen
        prefix = "requests_by_source."
        for name, count in self.settled()["counters"].items():
            if name.startswith(prefix) and count > before[name]:
                seen[name.removeprefix(prefix)] = count - before[name]


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event."""
    for line in response.iter_lines():
        text = line.decode().removeprefix("data: ") if line.startswith(b"data: ") else ""
        if text and text != "[DONE]":
            yield json.loads(text)
