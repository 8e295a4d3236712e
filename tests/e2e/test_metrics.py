"""The cache's metrics on the server's own `/metrics`, against what `/server_info` says."""

from __future__ import annotations

import random
import time

from prometheus_client.parser import text_string_to_metric_families

from sglang_agentcache.serving.families import PREFIX
from sglang_agentcache.serving.metrics import REFRESH_S
from tests.support.e2e_client import Client, random_tokens
from tests.support.e2e_servers import RR, Running, on

LATEST_S = 60.0  # a loaded machine; a second or two on an idle one
COUNTERS = {
    ("completions_total", ""): "completed",
    ("released_tokens_total", ""): "released_tokens",
    ("tail_chunks_total", ""): "tail_chunks",
    ("evicted_tokens_total", "idle_tail"): "tail_tokens",
    ("requests_total", "hint"): "requests_by_source.hint",
}
"""By name and label, the counter in `/server_info`."""


def scrape(client: Client) -> dict[tuple[str, str], float]:
    """Our samples by name and own label."""
    own = ("state", "where", "reason", "kind", "source", "outcome", "le")
    samples = (
        sample
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    )
    return {
        (
            sample.name.removeprefix(PREFIX),
            "/".join(sample.labels[name] for name in own if name in sample.labels),
        ): sample.value
        for sample in samples
    }


def settled(client: Client, counters: dict[str, int]) -> dict[tuple[str, str], float]:
    """Our samples once they say what `/server_info` said: they follow it by a second or so."""
    wanted = {key: counters.get(name, 0) for key, name in COUNTERS.items()}
    deadline = time.monotonic() + LATEST_S
    while time.monotonic() < deadline:
        found = scrape(client)
        if {key: found.get(key) for key in wanted} == wanted:
            break
        time.sleep(REFRESH_S / 4)
    return scrape(client)


@on(RR)
def test_metrics_follow_the_cache(server: Running, client: Client, rng: random.Random) -> None:
    counted = client.state()["counters"]
    before = settled(client, counted)
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

    state = client.state()
    after = settled(client, state["counters"])

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
