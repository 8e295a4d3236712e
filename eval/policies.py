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

    ``config`` (None: no such flag) is ``--radix-eviction-policy-config``, plus ``chunk_tokens``. A ``blind``
    server is not told which tools run, neither by clients nor by decode workers.
    """

    module: str
    arguments: tuple[str, ...] = ()
    hints: bool = True
    config: Mapping[str, Any] | None = None
    blind: bool = False

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
    "predictive": Policy(OURS, ("--radix-eviction-policy", "predictive"), config={}),
    "predictive-blind": Policy(OURS, ("--radix-eviction-policy", "predictive"), config={}, blind=True),
    "convex": Policy(OURS, ("--radix-eviction-policy", "convex"), config={}),
    "convex-blind": Policy(OURS, ("--radix-eviction-policy", "convex"), config={}, blind=True),
    "rr-leaf": Policy(OURS, ("--radix-eviction-policy", "rr"), config={"visit": "leaf"}),
}
