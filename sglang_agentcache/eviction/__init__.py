"""Eviction policies by name. To add one: subclass `EvictionPolicy`, list it in `POLICIES`."""

from .base import EvictionPolicy, IdleTrajectory
from .convex import Convex
from .predictive import Predictive
from .round_robin import RoundRobin

POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy for policy in (RoundRobin, Predictive, Convex)
}

__all__ = ["POLICIES", "Convex", "EvictionPolicy", "IdleTrajectory", "Predictive", "RoundRobin"]
