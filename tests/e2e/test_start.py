"""What a server says of itself at start, and that it leaves stock SGLang alone."""

from __future__ import annotations

from eval.counters import agentcache_states
from tests.support.e2e_client import Client
from tests.support.e2e_servers import LRU, PLUGIN, RR, RR_PAGE_16, STOCK, WRITE_THROUGH, Running, on

IN_FORCE = "agentcache: policy="
SETTINGS = {
    RR: {"policy": "rr", "chunk_tokens": 1024, "visit": "chunk", "tree_core": "RustUnifiedTreeCore"},
    LRU: {"policy": "lru", "chunk_tokens": None, "visit": None, "tree_core": "RustUnifiedTreeCore"},
    PLUGIN: {"policy": "rr", "chunk_tokens": 512, "visit": "leaf", "tree_core": "UnifiedTreeCore"},
}


@on(RR, RR_PAGE_16, LRU, PLUGIN, WRITE_THROUGH)
def test_the_log_says_once_what_is_in_force(server: Running, client: Client) -> None:
    (line,) = [line for line in server.start_log.splitlines() if IN_FORCE in line]
    state = client.state()
    assert f"policy={state['policy']} " in line
    assert f"tree_core={state['tree_core']} " in line
    assert f"page_size={server.config.page_size} " in line
    assert all(source in line for source in state["trajectory_sources"])
    if state["chunk_tokens"] is not None:
        assert f"chunk_tokens={state['chunk_tokens']} visit={state['visit']} " in line
    assert "impl=AgentRadixCache" in server.start_log


@on(RR, LRU, PLUGIN)
def test_server_info_says_what_is_in_force(server: Running, client: Client) -> None:
    expected = SETTINGS[server.config]
    state = client.state()
    assert state["page_size"] == server.config.page_size
    assert {key: state[key] for key in expected} == expected
    assert state["trajectories"]["active"] == 0
    assert state["pool"]["free_tokens"] == server.config.pool_tokens
    assert state["released_tokens"] >= 0


@on(STOCK)
def test_without_our_policy_the_server_is_as_shipped(server: Running, client: Client) -> None:
    assert "impl=UnifiedRadixCache" in server.start_log
    assert IN_FORCE not in server.log_text()
    assert agentcache_states(client.get("/server_info").json()) == []
    assert len(client.generate([1, 2, 3], "some id", 4).output_ids) == 4
    assert client.generate([1, 2, 3, 4], session_id="s").meta["finish_reason"]["type"] == "length"
    client.post("/close_session", {"session_id": "s"})
    answer = client.send("/agentcache/complete", {"trajectory_id": "some id"})
    assert answer.status_code == 503
    assert "--radix-cache-backend agentcache" in answer.text
