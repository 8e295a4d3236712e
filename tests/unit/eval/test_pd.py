"""How the processes of a PD cluster are started, and how hints get past its router."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eval import pd
from eval.__main__ import main
from eval.closed_loop import Replay, ReplayConfig, hint
from eval.pd import Cluster, Role
from eval.server import Server
from eval.trace import Trajectory, Turn


def value(server: Server, flag: str) -> str:
    return server.command[server.command.index(flag) + 1]


def cluster(folder: Path, **options: Any) -> Cluster:
    return Cluster(folder, Role("p", ["--policy-of-p"]), Role("d"), prefills=2, decodes=3, **options)


def test_the_router_knows_every_server(tmp_path: Path) -> None:
    made = cluster(tmp_path, routing="random", router_arguments=("--further", "flag"))
    command = made.router.command
    prefills = [command[i + 1 : i + 3] for i, word in enumerate(command) if word == "--prefill"]
    assert prefills == [
        [server.url, value(server, "--disaggregation-bootstrap-port")] for server in made.prefills
    ]
    assert [int(port) for _, port in prefills] == made.bootstrap_ports
    decodes = [command[i + 1] for i, word in enumerate(command) if word == "--decode"]
    assert decodes == [server.url for server in made.decodes]
    assert value(made.router, "--policy") == "random" and command[-2:] == ["--further", "flag"]
    assert made.url == made.router.url and made.cache_url == made.prefills[0].url
    servers = [*made.prefills, *made.decodes, made.router]
    assert len({server.port for server in servers} | set(made.bootstrap_ports)) == 8


@pytest.mark.parametrize(
    ("channel", "told"), [("", None), ("http://relay:1", "http://relay:1"), ("prefills", "all")]
)
def test_whom_decode_servers_tell(tmp_path: Path, channel: str, told: str | None) -> None:
    made = cluster(tmp_path, channel=channel)
    urls = ",".join(server.url for server in made.prefills)
    for server in made.decodes:
        if told is None:
            assert "--agentcache-prefill-url" not in server.command
        else:
            assert value(server, "--agentcache-prefill-url") == (urls if told == "all" else told)
        assert made.secret not in " ".join(server.command)
    assert all("--agentcache-prefill-url" not in server.command for server in made.prefills)


def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(pd.TRANSFERS, "nixl", "no_such_library")
    assert main(["pd-demo", "--transfer", "nixl", "--generated"]) == 2
    assert "requirements-pd.txt" in capsys.readouterr().err


def test_a_cluster_needs_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    if pd.missing("nixl") is not None:
        pytest.skip("NIXL and the router are not installed")
    assert main(["pd-demo", "--decodes", "0"]) == 2
    assert "--decodes" in capsys.readouterr().err


def test_tool_calls_may_be_kept_back() -> None:
    turns = [
        Turn(kind="user", prompt_tokens=4, new_input_tokens=4, output_tokens=1),
        Turn(kind="tool", prompt_tokens=9, new_input_tokens=4, output_tokens=1, gap_s=0.0, tool_name="ls"),
    ]
    item = Trajectory(turns=turns, trajectory_id="t", session_group="g", source="s")
    assert "tool_calls" in hint(item, 0, oracle=False)["agentcache"]
    assert hint(item, 0, oracle=False, tool_calls=False)["agentcache"] == {
        "trajectory_id": "t",
        "final": False,
    }


@pytest.mark.parametrize("router", [False, True])
def test_hints_go_where_the_server_or_its_router_reads_them(router: bool) -> None:
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            meta = {"completion_tokens": 1, "cached_tokens": 0}
            event = json.dumps({"output_ids": [5], "meta_info": meta})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    turn = Turn(kind="user", prompt_tokens=4, new_input_tokens=4, output_tokens=1)
    item = Trajectory(turns=[turn], trajectory_id="t", session_group="g", source="s")
    config = ReplayConfig(f"http://127.0.0.1:{server.server_port}", 1, hints=True, router=router)
    outcome = asyncio.run(Replay(config, [item]).run())
    server.shutdown()
    server.server_close()

    assert outcome.requests[0].error is None
    (body,) = bodies
    expected = {"trajectory_id": "t", "final": True}
    if router:
        assert json.loads(body["custom_labels"]["agentcache"]) == expected
        assert "custom_params" not in body["sampling_params"]
    else:
        assert body["sampling_params"]["custom_params"] == {"agentcache": expected}
        assert "custom_labels" not in body
