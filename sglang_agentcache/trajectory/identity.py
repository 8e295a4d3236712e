"""From what a request carries to the trajectory it belongs to, in the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sglang_agentcache.serving.hints import DECLARED, KEY, Hints, is_id, unpack, unpack_actions


class Namespace(NamedTuple):
    """What splits SGLang's radix tree: requests with different namespaces never share a node."""

    extra_key: str | None = None
    cache_salt: str | None = None


class TrajectoryKey(NamedTuple):
    """The key of every table of trajectories; a pair, since joined parts could collide across tenants."""

    namespace: Namespace
    trajectory_id: str


class Resolved(NamedTuple):
    """The trajectory of one request; ``key`` is None (and ``source`` "") where only its lineage can tell."""

    key: TrajectoryKey | None
    source: str
    hints: Hints


def resolve(
    custom_params: object,
    session_id: str | None,
    kv_hints: object,
    extra_key: str | None,
    cache_salt: str | None,
) -> Resolved:
    """Return the trajectory of a request, and what it says about itself.

    The HTTP process has validated and packed what it saw, but a request may also come through the Engine or
    gRPC: nothing here raises, and what is malformed is ignored.

    Args:
        custom_params: ``SamplingParams.custom_params`` of the request.
        session_id: SGLang's top-level session id.
        kv_hints: the request's ``KvHintsEnvelope``, a dict of the same shape, or None.
        extra_key: with ``cache_salt`` the namespace; "" is the same as None, as in SGLang.
        cache_salt: see ``extra_key``.
    """
    packed = custom_params.get(KEY) if isinstance(custom_params, Mapping) else None
    carried, source = unpack(packed, f"custom_params.{KEY}")
    hints = unpack_actions(kv_hints).over(carried)
    if hints.trajectory_id is None and is_id(session_id):
        hints, source = Hints(trajectory_id=session_id).over(hints), "session_id"
    elif hints.trajectory_id != carried.trajectory_id:
        source = DECLARED
    if hints.trajectory_id is None:
        return Resolved(None, "", hints)
    namespace = Namespace(extra_key or None, cache_salt or None)
    return Resolved(TrajectoryKey(namespace, hints.trajectory_id), source, hints)
