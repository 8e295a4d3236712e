"""Two data-parallel ranks: each keeps its own table, and what concerns a trajectory reaches the one that has it."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from eval.counters import agentcache_states
from eval.plugin import plugin_in
from sglang_agentcache.predictor.store import DEFAULT_DIR
from tests.support.e2e_client import random_tokens
from tests.support.e2e_servers import Config, complaint_in, running

pytestmark = pytest.mark.slow

CONVEX = ("--radix-eviction-policy", "convex")
TWO_REPLICAS = Config("convex-dp2", (*CONVEX, "--dp-size", "2"), ranks=2)
DP_ATTENTION = Config(
    "convex-dp-attention", (*CONVEX, "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"), ranks=2
)
AGENTS = 6
PROMPT, OUTPUT = 300, 4


needs_asking = pytest.mark.skipif(
    not os.environ.get("AGENTCACHE_DP_ATTENTION"),
    reason="set AGENTCACHE_DP_ATTENTION=1: another server, 40 s",
)


@pytest.mark.parametrize(
    "config", [TWO_REPLICAS, pytest.param(DP_ATTENTION, marks=needs_asking)], ids=lambda config: config.name
)
def test_completion_and_reload_reach_every_replica(config: Config, model: Path, tmp_path: Path) -> None:
    if config is DP_ATTENTION:
        plugin = plugin_in(tmp_path, "cpu_dp_attention", "tests.support.cpu_dp_attention:activate")
        config = replace(config, environment=tuple(plugin.items()))
    rng = random.Random(0)
    with running(config, model, tmp_path / "server.log") as server:
        client = server.client
        replicas = [
            client.generate(random_tokens(rng, PROMPT), f"agent-{number}", OUTPUT).meta["dp_rank"]
            for number in range(AGENTS)
        ]
        assert set(replicas) == {0, 1}

        for number in range(AGENTS):
            answer = client.complete(f"agent-{number}")
            # SGLang keeps no KV of the last token.
            assert answer["known"] and answer["released_tokens"] == PROMPT + OUTPUT - 1
        assert not client.complete("nobody")["known"]
        assert not client.complete("agent-0")["known"], "it is over on the replica that had it, too"

        artefact = client.post("/agentcache/predictor", {"path": str(DEFAULT_DIR)})["artefact"]
        states = agentcache_states(client.get("/server_info").json())
        assert [state["predictor"]["artefact"] for state in states] == [artefact] * 2
        assert [state["released_tokens"] for state in states] == [
            replicas.count(replica) * (PROMPT + OUTPUT - 1) for replica in (0, 1)
        ]
        assert complaint_in(server.log_text()) is None
