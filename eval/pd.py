"""Prefill servers, decode servers and SGLang's router, as real processes on the loopback interface."""

from __future__ import annotations

import importlib
import importlib.util
import secrets
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from eval import counters
from eval.server import CPU_ENVIRONMENT, Server, ServerFailed, free_port
from sglang_agentcache.disagg.settings import SECRET

ROUTER = "sglang_router.launch_router"
TRANSFERS = {"nixl": "nixl._api", "mooncake_tcp": "mooncake.engine"}
"""`--disaggregation-transfer-backend` that moves KV over TCP without a GPU, and the module that it loads."""
ENVIRONMENT = {
    **CPU_ENVIRONMENT,
    "SGLANG_HOST_IP": "127.0.0.1",
    # NIXL's transport; it would look for InfiniBand first.
    "UCX_TLS": "tcp,self,sm",
    # On few cores a prefill server may be too busy for heartbeats; two misses cut the connection.
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "10",
}
DECODE = ("--disaggregation-mode", "decode", "--disaggregation-decode-retraction-backup", "cpu_tensor")
"""The default backup takes host memory for a pool, and only where 10 GiB are left."""
START_S = 600.0
ROUTER_START_S = 300.0


def missing(transfer: str) -> str | None:
    """Why prefill and decode servers cannot run here, or None."""
    if importlib.util.find_spec("sglang_router") is None:
        return "sglang-router is not installed (docker/cpu/requirements-pd.txt)"
    try:
        importlib.import_module(TRANSFERS[transfer])
    except ImportError as error:
        return f"{transfer}: {error} (docker/cpu/requirements-pd.txt)"
    return None


@dataclass(frozen=True)
class Role:
    """How the servers of one side are started: ``python -m module arguments``."""

    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Cluster:
    """Prefill and decode servers behind one router. Use as a context manager; all are stopped on the way out.

    Args:
        folder: gets a log per process.
        prefill, decode: the two sides.
        prefills, decodes: how many servers of each.
        transfer: one of `TRANSFERS`.
        routing: the router's policy; `router_arguments` are further flags of it.
        channel: whom decode servers (of ours) tell how requests ended: "prefills", addresses, or "" for nobody.
    """

    def __init__(
        self,
        folder: Path,
        prefill: Role,
        decode: Role,
        *,
        prefills: int = 1,
        decodes: int = 1,
        transfer: str = "nixl",
        routing: str = "cache_aware",
        router_arguments: Sequence[str] = (),
        channel: str = "",
        port: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = secrets.token_hex(16)
        backend = ("--disaggregation-transfer-backend", transfer)
        self.prefills: list[Server] = []
        self.decodes: list[Server] = []
        self.bootstrap_ports: list[int] = []
        routes: list[str] = []
        for number in range(prefills):
            bootstrap = free_port()
            self.bootstrap_ports.append(bootstrap)
            arguments = (
                "--disaggregation-mode",
                "prefill",
                "--disaggregation-bootstrap-port",
                str(bootstrap),
            )
            server = self._server(prefill, (*arguments, *backend), folder / f"prefill{number}.log")
            self.prefills.append(server)
            routes += ["--prefill", server.url, str(bootstrap)]
        if channel == "prefills":
            channel = ",".join(server.url for server in self.prefills)
        told = ("--agentcache-prefill-url", channel) if channel else ()
        for number in range(decodes):
            server = self._server(decode, (*DECODE, *backend, *told), folder / f"decode{number}.log")
            self.decodes.append(server)
            routes += ["--decode", server.url]
        self.router = Server(
            ROUTER,
            (
                *("--pd-disaggregation", "--policy", routing, *routes),
                *("--prometheus-port", str(free_port()), "--log-level", "warn", *router_arguments),
            ),
            folder / "router.log",
            port,
        )
        self._stack = ExitStack()

    def _server(self, role: Role, arguments: Sequence[str], log: Path) -> Server:
        environment = {**ENVIRONMENT, SECRET: self.secret, **role.environment}
        return Server(role.module, (*arguments, *role.arguments), log, environment=environment)

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return self.router.url

    @property
    def cache_url(self) -> str:
        """The (first) prefill server: the one that has the prefix cache."""
        return self.prefills[0].url

    @property
    def command(self) -> list[str]:
        """The commands of all processes, each after a "&"."""
        processes = (*self.prefills, *self.decodes, self.router)
        return [word for process in processes for word in ("&", *process.command)]

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            for server in (*self.prefills, *self.decodes):
                stack.enter_context(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def wait_healthy(self, timeout_s: float = START_S) -> float:
        """Wait until a request gets through; returns the seconds since now. Raises ServerFailed."""
        start = time.perf_counter()
        for server in (*self.prefills, *self.decodes):
            server.wait_healthy(timeout_s)
        self._stack.enter_context(self.router)
        self.router.wait_healthy(ROUTER_START_S)
        # Healthy is the router before it knows the servers.
        while not self._answers():
            if time.perf_counter() - start > timeout_s + ROUTER_START_S:
                raise ServerFailed(f"no request gets through the router:\n{self.router.log_tail()}")
            time.sleep(0.5)
        return time.perf_counter() - start

    def _answers(self) -> bool:
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        try:
            counters.post(self.url, "/generate", body, timeout_s=60.0)
            return True
        except (urllib.error.URLError, TimeoutError):
            return False


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that answers, until the block ends."""
    with cluster:
        cluster.wait_healthy()
        yield cluster
