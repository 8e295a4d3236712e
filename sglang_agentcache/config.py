"""What the server arguments ask of this package: parsed and checked once, before a model loads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .eviction import POLICIES, EvictionPolicy

BACKEND = "agentcache"
"""The name for SGLang's `--radix-cache-backend`."""
CHUNK_TOKENS = 1024
"""RR-EVICT section 4: the tail chunk of the paper's experiments."""
MAX_TRAJECTORIES = 100_000
FORGET_AFTER_S = 3600.0
VISITS = ("chunk", "leaf")

POLICY_FLAG = "--radix-eviction-policy"
CONFIG_FLAG = "--radix-eviction-policy-config"


class ConfigError(ValueError):
    """One sentence that names the flag or key and what is allowed."""


@dataclass(frozen=True)
class AgentCacheConfig:
    """The settings of one server.

    Attributes:
        policy: SGLang's own name ("lru", ...), or one of `eviction.POLICIES`.
        chunk_tokens: size of a tail chunk; 0 takes the whole private history of a trajectory.
        visit: "chunk" takes successive leaves until `chunk_tokens` are freed, "leaf" at most one leaf.
        policy_options: further keyword arguments of the policy's class.
        max_trajectories: upper bound of the trajectory table.
        forget_after_s: a trajectory with nothing resident is forgotten after this many idle seconds.
    """

    policy: str = "rr"
    chunk_tokens: int = CHUNK_TOKENS
    visit: str = "chunk"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    max_trajectories: int = MAX_TRAJECTORIES
    forget_after_s: float = FORGET_AFTER_S

    @property
    def orders_trajectories(self) -> bool:
        """False if SGLang's own order decides, True if a policy of ours does."""
        return self.policy in POLICIES

    def make_policy(self) -> EvictionPolicy | None:
        """A new policy object, or None where SGLang's own order decides."""
        return POLICIES[self.policy](**self.policy_options) if self.orders_trajectories else None

    @classmethod
    def parse(cls, policy: str, options: Mapping[str, Any] | None, page_size: int) -> AgentCacheConfig:
        """Check `--radix-eviction-policy` and `--radix-eviction-policy-config`.

        Raises:
            ConfigError: an unknown key, or a value that is not allowed.
        """
        policy = policy.lower()
        if policy not in POLICIES:
            return cls(policy=policy)
        given = dict(options or {})
        own = _option_names(POLICIES[policy])
        allowed = ("chunk_tokens", "visit", "max_trajectories", "forget_after_s", *own)
        unknown = sorted(given.keys() - set(allowed))
        if unknown:
            raise ConfigError(
                f"{CONFIG_FLAG}: unknown key {unknown[0]!r} for {POLICY_FLAG} {policy}; "
                f"allowed are {', '.join(allowed)}."
            )
        chunk = _integer(given, "chunk_tokens", CHUNK_TOKENS, minimum=0)
        if 0 < chunk < page_size:
            raise ConfigError(
                f"{CONFIG_FLAG}: 'chunk_tokens' must be at least the page size (--page-size {page_size}), "
                f"or 0 for whole trajectories; got {chunk}."
            )
        visit = given.get("visit", "chunk")
        if visit not in VISITS:
            raise ConfigError(f"{CONFIG_FLAG}: 'visit' must be one of {', '.join(VISITS)}; got {visit!r}.")
        config = cls(
            policy=policy,
            chunk_tokens=chunk,
            visit=visit,
            policy_options={name: given[name] for name in own if name in given},
            max_trajectories=_integer(given, "max_trajectories", MAX_TRAJECTORIES, minimum=1),
            forget_after_s=_seconds(given, "forget_after_s", FORGET_AFTER_S),
        )
        try:
            config.make_policy()
        except ValueError as error:
            raise ConfigError(f"{CONFIG_FLAG}: {error}.") from error
        return config


def _option_names(policy: type[EvictionPolicy]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(policy.__init__).parameters if name != "self")


def _integer(given: Mapping[str, Any], key: str, default: int, minimum: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{CONFIG_FLAG}: {key!r} must be an integer of at least {minimum}; got {value!r}.")
    return value


def _seconds(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{CONFIG_FLAG}: {key!r} must be a number of seconds of at least 0; got {value!r}.")
    return float(value)
