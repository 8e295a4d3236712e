"""Counters that a server keeps, read over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

EVICTED = "sglang:evicted_tokens"
"""Device tokens evicted (SGLang 0.5.23, observability/metrics_collector.py); the parser drops ``_total``."""


def get(url: str, path: str, api_key: str | None = None, timeout_s: float = 30.0) -> bytes:
    """Body of a GET. Raises OSError (also for an HTTP status that is not 200)."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return response.read()


def post(url: str, path: str, body: Any, timeout_s: float = 30.0) -> bytes:
    """Body of the answer to a POST of JSON. Raises OSError (also for an HTTP status that is not 200)."""
    request = urllib.request.Request(
        url.rstrip("/") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return response.read()


def flush_cache(url: str, api_key: str | None = None) -> None:
    """Empty the server's cache; it must be idle. Raises OSError."""
    request = urllib.request.Request(url.rstrip("/") + "/flush_cache?timeout=30", method="POST")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    with urllib.request.urlopen(request, timeout=60.0):
        pass


def server_info(url: str, api_key: str | None = None) -> dict[str, Any]:
    """``GET /server_info``. Raises OSError."""
    return json.loads(get(url, "/server_info", api_key))


def agentcache_states(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The ``agentcache`` section of each scheduler; empty on a server without the package."""
    return [state["agentcache"] for state in info.get("internal_states", []) if state.get("agentcache")]


@dataclass(frozen=True)
class Counters:
    """Tokens since the server started; ``evicted`` is None if it runs without ``--enable-metrics``."""

    evicted: int | None
    released: int

    @classmethod
    def read(cls, url: str, api_key: str | None = None) -> Counters:
        """Read both. Raises OSError if the server does not answer."""
        evicted: int | None
        try:
            text = get(url, "/metrics", api_key).decode()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            evicted = None
        else:
            evicted = round(
                sum(
                    sample.value
                    for family in text_string_to_metric_families(text)
                    if family.name == EVICTED
                    for sample in family.samples
                    if sample.name == f"{EVICTED}_total"
                )
            )
        states = agentcache_states(server_info(url, api_key))
        return cls(evicted, sum(int(state.get("released_tokens", 0)) for state in states))

    def __sub__(self, earlier: Counters) -> Counters:
        evicted = None if self.evicted is None or earlier.evicted is None else self.evicted - earlier.evicted
        return Counters(evicted, self.released - earlier.released)
