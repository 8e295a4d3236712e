"""Every command line in the Compose files and the manifests, read by the parser of the program it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.deployments import parse, pod_command, services

pytestmark = pytest.mark.slow

WORKERS = ("prefill", "decode-1", "decode-2", "decode-3")


@pytest.fixture(scope="module")
def parsed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Attributes by where the command line stands: "FILE SERVICE" or "k8s COMPONENT"."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text("a-secret-of-24-characters")
    one = services(
        repository, "compose.yaml", POLICY="convex", POLICY_CONFIG='{"chunk_tokens": 512}', TP_SIZE="2"
    )
    many = services(repository, "compose.1p3d.yaml", TRANSFER_BACKEND="nixl")
    commands = {
        "one server": one["server"]["command"],
        **{f"1p3d {name}": many[name]["command"] for name in (*WORKERS, "router")},
        **{f"k8s {name}": pod_command(repository, name) for name in ("prefill", "decode", "router")},
    }
    listed = [("router" if "router" in where else "server", command) for where, command in commands.items()]
    return dict(zip(commands, parse(listed, repository, secret), strict=True))


def servers(parsed: dict[str, Any], *parts: str) -> list[dict[str, Any]]:
    found = [values for where, values in parsed.items() if any(part in where for part in parts)]
    assert found
    return found


def test_what_all_servers_share(parsed: dict[str, Any]) -> None:
    for server in servers(parsed, "server", "prefill", "decode"):
        assert server["enable_metrics"] is True and server["tool_call_parser"] == "qwen25"
        assert (server["host"], server["port"]) == ("0.0.0.0", 30000)
        assert server["model_path"] == "/models/Qwen3-8B"


def test_variables_arrive(parsed: dict[str, Any]) -> None:
    (server,) = servers(parsed, "one server")
    assert (server["radix_eviction_policy"], server["tp_size"]) == ("convex", 2)
    assert server["radix_eviction_policy_config"] == {"chunk_tokens": 512}
    for worker in servers(parsed, "1p3d prefill", "1p3d decode"):
        assert worker["disaggregation_transfer_backend"] == "nixl"
    for worker in servers(parsed, "k8s prefill", "k8s decode"):
        assert worker["disaggregation_transfer_backend"] == "mooncake_tcp"


def test_prefill_workers_order_and_decode_workers_tell_them(parsed: dict[str, Any]) -> None:
    for prefill in servers(parsed, "prefill"):
        assert (prefill["disaggregation_mode"], prefill["radix_eviction_policy"]) == ("prefill", "rr")
        assert prefill["disaggregation_bootstrap_port"] == 8998
        assert "SGLANG_AGENTCACHE_SECRET_FILE" in prefill
    assert len(servers(parsed, "1p3d decode")) == 3
    for decode in servers(parsed, "decode"):
        assert decode["disaggregation_mode"] == "decode"
        assert "SGLANG_AGENTCACHE_SECRET_FILE" in decode
    for decode in servers(parsed, "1p3d decode"):
        assert decode["SGLANG_AGENTCACHE_PREFILL_URL"] == "http://prefill:30000"


def test_routers(parsed: dict[str, Any]) -> None:
    if parsed["1p3d router"] is None:
        pytest.skip("needs docker/cpu/requirements-pd.txt")
    for where, prefill, decode in (
        ("1p3d", "http://prefill:30000", "http://decode-{1}:30000"),
        (
            "k8s",
            "http://agentcache-prefill-0.agentcache-prefill:30000",
            "http://agentcache-decode-{0}.agentcache-decode:30000",
        ),
    ):
        router = parsed[f"{where} router"]
        assert router["pd_disaggregation"] is True and router["policy"] == "cache_aware"
        assert router["prefill_urls"] == [[prefill, 8998]]
        assert router["decode_urls"] == [decode.format(index, index + 1) for index in range(3)]
        assert (router["host"], router["port"], router["prometheus_port"]) == ("0.0.0.0", 30000, 29000)
