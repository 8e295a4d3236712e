"""Tools declared in chat requests, no hints: the server reads the calls, learns how long they take, and acts on it."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_agentcache.predictor.records import read_records
from tests.support.e2e_client import Client, events, random_tokens
from tests.support.e2e_servers import Config, running

pytestmark = pytest.mark.slow

WAITS_S = {"quick": 0.3, "slow": 4.0}
ROUNDS = 4
HISTORY = 2_400
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in WAITS_S
]


class Agent:
    """One conversation over the chat API; the grammar makes the model call the agent's tool, as text."""

    def __init__(self, client: Client, name: str, tool: str, streams: bool) -> None:
        self.client = client
        self.streams = streams
        self.headers = {"x-session-id": name}
        self.tool = tool
        rng = random.Random(name)
        text = "".join(rng.choice("abcdefghij ") for _ in range(HISTORY))
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        self.last_tokens = 0

    def turn(self) -> int:
        """One request and its tool call.

        Returns:
            tokens of the agent's history that were no longer cached.
        """
        call = rf'<tool_call>\n\{{"name": "{self.tool}", "arguments": \{{"n": 1\}}\}}\n</tool_call>'
        body = {
            "model": "tiny",
            "messages": self.messages,
            "tools": TOOLS,
            "regex": call,
            "temperature": 0,
            "max_tokens": 200,
        }
        made, usage = self._streamed(body) if self.streams else self._whole(body)
        assert made["function"] == {"name": self.tool, "arguments": '{"n": 1}'}
        lost = self.last_tokens - usage["prompt_tokens_details"]["cached_tokens"]
        # The last token generated, the end of the turn, has no KV.
        self.last_tokens = usage["total_tokens"] - 1
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": made["id"], "content": "done"},
        ]
        return lost

    def _whole(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = self.client.post("/v1/chat/completions", body, self.headers)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls", answer
        (made,) = choice["message"]["tool_calls"]
        return {"id": made["id"], "type": "function", "function": made["function"]}, answer["usage"]

    def _streamed(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        made: dict[str, Any] = {"type": "function", "function": {"name": "", "arguments": ""}}
        usage: dict[str, Any] = {}
        with self.client.send("/v1/chat/completions", body, self.headers, stream=True) as response:
            assert response.ok, response.text
            for event in events(response):
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    for delta in choice["delta"].get("tool_calls") or ():
                        made["id"] = delta.get("id") or made.get("id")
                        made["function"]["name"] += delta["function"].get("name") or ""
                        made["function"]["arguments"] += delta["function"].get("arguments") or ""
        return made, usage


def config(policy: str, log: Path) -> Config:
    arguments = ("--radix-eviction-policy", policy, "--tool-call-parser", "qwen")
    return Config(f"{policy}-tools", (*arguments, "--agentcache-call-log", str(log)))


@pytest.mark.parametrize("policy", ["predictive", "convex"])
def test_the_slow_tools_tails_go_first(policy: str, model: Path, tmp_path: Path, rng: random.Random) -> None:
    log = tmp_path / "calls.jsonl"
    with running(config(policy, log), model, tmp_path / "server.log") as server:
        client = server.client
        agents = [
            Agent(client, f"{tool}-{number}", tool, streams=bool(number))
            for tool in ("slow", "quick")
            for number in range(2)
        ]
        live(agents)
        learned(client.settled())

        for agent in agents:
            agent.turn()
        # Needs more than is free, and less than the slow ones have; freed when it finishes.
        free = client.state()["pool"]["free_tokens"]
        client.generate(random_tokens(rng, free + 2_000), "filler", hints={"final": True})
        slow, quick = (
            sum(agent.turn() for agent in agents if agent.tool == tool) for tool in ("slow", "quick")
        )
        assert slow >= 2_000, (slow, quick)
        assert quick < 50, (slow, quick)
        server.assert_clean()
        reloads(client, tmp_path)
    logged(log)


def live(agents: list[Agent]) -> None:
    def run(agent: Agent) -> None:
        for _ in range(ROUNDS):
            agent.turn()
            time.sleep(WAITS_S[agent.tool])

    threads = [threading.Thread(target=run, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def learned(state: dict[str, Any]) -> None:
    assert state["tool_call_parser"] == "qwen"
    assert state["unreadable_outputs"] == 0
    assert len(state["predictor"]["artefact"]) == 64
    assert set(state["tools"]) == {"quick", "slow"}
    for tool, wait_s in WAITS_S.items():
        assert state["tools"][tool]["count"] == 2 * (ROUNDS - 1)
        assert wait_s <= state["tools"][tool]["typical_s"] < wait_s + 3


def reloads(client: Client, tmp_path: Path) -> None:
    """Another artefact is taken, a damaged one refused, and the server goes on."""
    from sglang_agentcache.predictor.store import DEFAULT_DIR, load_default, save

    before = client.state()["predictor"]["artefact"]
    other = load_default()
    other.observe(other.prepare(("bash", "ls")), 5.0)
    digest = save(other, tmp_path / "other")
    assert client.post("/agentcache/predictor", {"path": str(tmp_path / "other")})["artefact"] == digest
    assert client.state()["predictor"]["artefact"] == digest != before

    header = json.loads((tmp_path / "other" / "predictor.json").read_text())
    (tmp_path / "other" / "predictor.json").write_text(json.dumps({**header, "sha256": "0"}))
    refused = client.send("/agentcache/predictor", {"path": str(tmp_path / "other")})
    assert refused.status_code == 400
    assert "checksum" in refused.text
    assert client.state()["predictor"]["artefact"] == digest
    assert client.post("/agentcache/predictor", {"path": str(DEFAULT_DIR)})["artefact"] == before


def logged(log: Path) -> None:
    """What `train` reads back."""
    records = read_records([log])
    names = [wait.calls[0].name for wait in records.waits]
    assert names.count("slow") == names.count("quick") == 2 * (ROUNDS + 1)
    assert len(set(records.sessions)) == 4
    assert "slow-0" not in log.read_text()
