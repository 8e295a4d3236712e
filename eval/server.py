"""Starts and stops one real SGLang server as a child process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType

from eval import counters

# SGLang's CPU engine needs the first; without the second a request costs 20 times as much on few cores.
CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
PLUGIN = "agentcache"
PORTS = range(22_000, 30_000)


class ServerFailed(RuntimeError):
    """The server did not start; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port that nothing listens on now, for a process that binds it only later.

    Below the ports that the kernel hands out (32768 and up by default): SGLang's processes draw theirs from those
    while a server starts, and it hangs if its own has gone.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def without_our_plugin() -> dict[str, str]:
    """Environment in which SGLang loads every installed plugin except ours: the server as shipped."""
    names = sorted(point.name for point in entry_points(group="sglang.srt.plugins") if point.name != PLUGIN)
    # An empty list would mean "all of them".
    return {"SGLANG_PLUGINS": ",".join(names) or "none"}


class Server:
    """A server subprocess on this machine. Use as a context manager; it is stopped on the way out.

    Args:
        module: what ``python -m`` runs, SGLang's launcher or ours.
        arguments: its flags, without host and port.
        log: file that receives the server's output.
        environment: variables on top of this process's.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [
            *(sys.executable, "-m", module),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *arguments,
        ]
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def cache_url(self) -> str:
        """Where the prefix cache is that clients of `url` share."""
        return self.url

    def __enter__(self) -> Server:
        self.log.unlink(missing_ok=True)
        self.start()
        return self

    def start(self) -> None:
        """Start the process; it writes to the end of the log."""
        with self.log.open("ab") as out:
            # A session of its own: Ctrl-C reaches us only, and the whole group can be stopped by its id.
            self._process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_healthy(self, timeout_s: float = 180.0) -> float:
        """Wait until ``/health`` answers 200 and return the seconds it took. Raises ServerFailed."""
        assert self._process is not None, "use `with`"
        start = time.perf_counter()
        while time.perf_counter() - start < timeout_s:
            if self._process.poll() is not None:
                raise ServerFailed(f"the server exited with {self._process.returncode}:\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                counters.get(self.url, "/health", timeout_s=5.0)
                return time.perf_counter() - start
            time.sleep(0.25)
        raise ServerFailed(f"the server was not healthy after {timeout_s:.0f} s:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        """The end of the server's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        """End the server and its processes as a crash of the machine would."""
        self.stop(grace_s=0.0)

    def stop(self, grace_s: float = 10.0) -> None:
        """Stop the server and every process it started; `start` starts it again, at the same address."""
        if self._process is None:
            return
        group = self._process.pid
        if grace_s:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        # The schedulers live in the same group and may outlast the HTTP process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._process.wait()
        self._process = None
