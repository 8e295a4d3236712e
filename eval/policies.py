"""The cache policies that the demo compares: how their servers are started and whether clients send hints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOCK, OURS = "sglang.launch_server", "sglang_agentcache.launch_server"


@dataclass(frozen=True)
class Policy:
    """How a policy's server is started and whether its clients send hints.

    ``config`` (None: no such flag) is ``--radix-eviction-policy-config``, plus ``chunk_tokens``.
    """

    module: str
    arguments: tuple[str, ...] = ()
    hints: bool = True
    config: Mapping[str, Any] | None = None

    def command(self, chunk_tokens: int) -> list[str]:
        """The flags that select this policy."""
        if self.config is None:
            return list(self.arguments)
        config = json.dumps({"chunk_tokens": chunk_tokens, **self.config})
        return [*self.arguments, "--radix-eviction-policy-config", config]


POLICIES: Mapping[str, Policy] = {
    # As shipped: SGLang's own launcher, our plugin not loaded, no hints.
    "lru": Policy(STOCK, hints=False),
    "lru+completion": Policy(OURS, ("--radix-cache-backend", "agentcache", "--radix-eviction-policy", "lru")),
    "rr": Policy(OURS, ("--radix-eviction-policy", "rr"), config={}),
    "rr-leaf": Policy(OURS, ("--radix-eviction-policy", "rr"), config={"visit": "leaf"}),
}
