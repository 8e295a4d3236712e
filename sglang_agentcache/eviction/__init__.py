"""Eviction policies by name. To add one: subclass `EvictionPolicy`, list it in `POLICIES`."""

from .base import EvictionPolicy, IdleTrajectory
from .round_robin import RoundRobin

POLICIES: dict[str, type[EvictionPolicy]] = {policy.name: policy for policy in (RoundRobin,)}

__all__ = ["POLICIES", "EvictionPolicy", "IdleTrajectory", "RoundRobin"]
