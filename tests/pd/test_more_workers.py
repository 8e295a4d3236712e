"""Several prefill or decode servers; minutes long, so only if AGENTCACHE_PD_CLUSTERS=1 asks for them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from eval.pd import Cluster, running
from tests.support.e2e_client import Client, random_tokens
from tests.support.pd_cluster import POOL_TOKENS, ROUTER, PdClient, roles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("AGENTCACHE_PD_CLUSTERS") != "1", reason="AGENTCACHE_PD_CLUSTERS is not 1"
    ),
]

RR = ("--radix-eviction-policy", "rr", "--radix-eviction-policy-config", '{"chunk_tokens": 128}')


def conversation(client: PdClient, rng: random.Random, name: str, turns: int) -> None:
    history = random_tokens(rng, 400)
    for turn in range(turns):
        reply = client.generate(history, name, 8, final=turn == turns - 1)
        history = history + reply.output_ids + random_tokens(rng, 100)


def test_a_trajectory_that_moves_between_prefill_workers_leaves_no_leak(
    model: Path, tmp_path: Path, rng: random.Random
) -> None:
    prefill, decode = roles(model, *RR)
    # Round robin is the router's worst: every turn goes to the other worker.
    cluster = Cluster(
        tmp_path,
        prefill,
        decode,
        prefills=2,
        channel="prefills",
        routing="round_robin",
        router_arguments=ROUTER,
    )
    with running(cluster):
        client = PdClient(cluster)
        workers = [Client(server.url) for server in cluster.prefills]
        for worker in workers:
            # Of the requests that each server warms up with.
            worker.settled()
            worker.flush()
        for number in range(6):
            conversation(client, rng, f"agent-{number}", 6)
        for worker in workers:
            assert worker.settled()["counters"]["requests_by_source.hint"] > 0
        # The worker that did not see the last request is told by nobody but the client.
        for number in range(6):
            for worker in workers:
                worker.complete(f"agent-{number}")
        for worker in workers:
            assert worker.settled()["trajectories"] == {"active": 0, "idle": 0, "completed": 0}
            assert worker.free_tokens() == POOL_TOKENS
        client.assert_clean()


def test_three_decode_workers_and_a_cache_of_their_own(
    model: Path, tmp_path: Path, rng: random.Random
) -> None:
    prefill, decode = roles(
        model,
        "--page-size",
        "16",
        *RR,
        decode=("--page-size", "16", *RR, "--disaggregation-decode-enable-radix-cache"),
    )
    cluster = Cluster(tmp_path, prefill, decode, decodes=3, channel="prefills", router_arguments=ROUTER)
    with running(cluster):
        client = PdClient(cluster)
        for number in range(12):
            conversation(client, rng, f"agent-{number}", 3)
        heard = client.counter("hints.decode.applied") + client.counter("hints.decode.late")
        assert heard > 0
        for server in cluster.decodes:
            state = Client(server.url).settled()
            assert state["policy"] == "rr"
            assert state["pool"]["free_tokens"] + state["pool"]["evictable_tokens"] == POOL_TOKENS
            assert state["trajectories"]["active"] == 0
            assert state["counters"].get("requests_lost_track_of", 0) == 0
        client.assert_clean()
