"""The cache's metrics on the server's own `/metrics`, against what `/server_info` says."""

from __future__ import annotations

import random
import time

from prometheus_client.parser import text_string_to_metric_families

from sglang_agentcache.serving.families import PREFIX
from sglang_agentcache.serving.metrics import REFRESH_S
from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import RR, Running, on


def scrape(client: Client) -> dict[tuple[str, str], float]:
    """Our samples by name and own label, after the next refresh."""
    time.sleep(2 * REFRESH_S)
    own = ("state", "where", "reason", "kind", "source", "outcome", "le")
    return {
        (
            sample.name.removeprefix(PREFIX),
            "/".join(sample.labels[name] for name in own if name in sample.labels),
        ): (sample.value)
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


@on(RR)
def test_metrics_follow_the_cache(server: Running, client: Client, rng: random.Random) -> None:
    before = scrape(client)
    counted = client.state()["counters"]
    histories = {}
    for name in ("a", "b", "c"):
        prompt = random_tokens(rng, 2_000)
        histories[name] = prompt + client.generate(prompt, name, 4).output_ids
    returned = client.generate(histories["a"] + random_tokens(rng, 100), "a", 4)
    filler = 0
    while client.state()["counters"].get("tail_tokens", 0) == counted.get("tail_tokens", 0):
        filler += 1
        client.generate(random_tokens(rng, 3_000), f"filler{filler}", 4)
    client.complete(f"filler{filler}")  # nothing was cut from it

    after, state = scrape(client), client.state()

    def grown(name: str, label: str = "") -> float:
        return after[name, label] - before[name, label]

    def counter(key: str) -> int:
        return state["counters"].get(key, 0) - counted.get(key, 0)

    assert after["trajectories", "idle"] == state["trajectories"]["idle"] == 2 + filler
    assert after["trajectories", "active"] == 0
    assert after["idle_tokens", "resident"] == state["pool"]["evictable_tokens"]
    # What was cut, and the last token of each output, which has no KV.
    assert after["idle_tokens", "missing"] == counter("tail_tokens") + 2 + filler
    assert grown("evicted_tokens_total", "idle_tail") == counter("tail_tokens") > 0
    assert grown("tail_chunks_total") == counter("tail_chunks") > 0
    assert grown("released_tokens_total") == counter("released_tokens") > 0
    assert grown("completions_total") == 1
    assert grown("requests_total", "hint") == 4 + filler
    assert grown("uncached_tokens_count", "first") == 3 + filler
    assert grown("uncached_tokens_count", "continuation") == 1
    assert grown("uncached_tokens_sum", "continuation") == len(histories["a"]) + 100 - returned.cached
