"""The clusters of the PD tests, and how their clients speak through SGLang's router."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eval.pd import Cluster, Role
from eval.server import Server
from sglang_agentcache.disagg.channel import PATH, SECRET_HEADER
from tests.support.e2e_client import Client, Reply
from tests.support.e2e_servers import CHECKS, OUR_LAUNCHER, complaint_in

POOL_TOKENS = 8_192
WAIT_S = 60.0
ROUTER = ("--health-check-interval-secs", "2", "--health-success-threshold", "1")
"""A worker that was away is used again soon; by default it takes minutes."""
ENVIRONMENT = {
    **dict(CHECKS),
    # How long a request waits for a decode worker that has died; the default is 300 s.
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20",
    # The router asks for health every 2 s, and each answer would be a request of one token.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
}


def roles(model: Path, *prefill: str, decode: Sequence[str] = ()) -> tuple[Role, Role]:
    """Both sides with all of SGLang's memory checks on."""
    common = (
        *("--device", "cpu", "--model-path", str(model), "--dtype", "float32"),
        *("--max-total-tokens", str(POOL_TOKENS), "--enable-cache-report", "--enable-metrics"),
        *("--tool-call-parser", "qwen"),
    )
    return (
        Role(OUR_LAUNCHER, (*common, *prefill), ENVIRONMENT),
        Role(OUR_LAUNCHER, (*common, *decode), ENVIRONMENT),
    )


class PdClient:
    """Requests of agents through the router, and a look at both sides."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.router = Client(cluster.url)
        self.prefill = Client(cluster.cache_url)
        self.decode = Client(cluster.decodes[0].url)
        self._read = dict.fromkeys(self.servers, 0)

    @property
    def servers(self) -> list[Server]:
        return [*self.cluster.prefills, *self.cluster.decodes]

    def generate(
        self, prompt: Sequence[int], trajectory: str | None = None, tokens: int = 1, **hints: Any
    ) -> Reply:
        """One request; its hints go where the router lets them through."""
        body: dict[str, Any] = {}
        if trajectory is not None:
            hints["trajectory_id"] = trajectory
        if hints:
            body["custom_labels"] = {"agentcache": json.dumps(hints)}
        return self.router.generate(prompt, None, tokens, **body)

    def pair(self, prompt: Sequence[int], room: int, trajectory: str, tokens: int = 1) -> Reply:
        """One request as the router would send it to both sides, in a room of our choice."""
        body = Client.generate_body(prompt, trajectory, tokens) | {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.cluster.bootstrap_ports[0],
            "bootstrap_room": room,
        }
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self.prefill.post, "/generate", body)
            answer = self.decode.post("/generate", body)
            other.result()
        return Reply(answer["output_ids"], answer["meta_info"]["cached_tokens"], answer["meta_info"])

    def tell(self, *messages: dict[str, Any], secret: str | None = None) -> Any:
        """What a decode worker would send; the answer may have any status."""
        headers = {SECRET_HEADER: self.cluster.secret if secret is None else secret}
        return self.prefill.send(PATH, {"ended": list(messages)}, headers)

    def counter(self, name: str) -> int:
        return int(self.prefill.state()["counters"].get(name, 0))

    def channel(self) -> dict[str, Any]:
        (state,) = self.decode.state()["channel"]
        return state

    def heard(self) -> None:
        """Wait until the prefill worker has been told of everything that has ended."""
        until(lambda: not self.channel()["queued"] and not self.prefill.state()["rooms"])

    def flush(self) -> None:
        self.heard()
        self.prefill.flush()

    def new_log(self, server: Server) -> str:
        """What the server has written since the last call."""
        text = server.log.read_text(errors="replace")
        new, self._read[server] = text[self._read[server] :], len(text)
        return new

    def assert_clean(self) -> None:
        """Nothing active or locked on the prefill side, every token accounted for, no complaint in a log."""
        for server in self.cluster.prefills:
            state = Client(server.url).settled()
            assert state["trajectories"]["active"] == 0
            assert state["counters"].get("requests_lost_track_of", 0) == 0
            pool = state["pool"]
            assert pool["locked_tokens"] == 0
            assert pool["free_tokens"] + pool["evictable_tokens"] == POOL_TOKENS
        for server in self.servers:
            found = complaint_in(self.new_log(server))
            assert found is None, found.string[max(0, found.start() - 200) : found.start() + 3000]


def until(holds: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Wait for something that takes the background threads some time."""
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
