"""What must hold at every step of a simulation."""

from __future__ import annotations

from eval.sim.scheduler import SimulationError, Worker

TREE_CHECK_STEPS = 200
"""SGLang's own `sanity_check` walks the whole tree: once in this many steps."""


class Checks:
    """Conservation of memory and of requests. Raises `SimulationError`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._steps = 0
        self._served: set[str] = set()

    def step(self) -> None:
        """Free, cached and private slots add up to the pool, and none is negative."""
        worker, cache = self._worker, self._worker.cache
        available = worker.allocator.available_size()
        evictable, protected = cache.evictable_size(), cache.protected_size()
        private = sum(
            req.kv.kv_allocated_len - req.kv.cache_protected_len
            for req in worker.holders()
            if req.kv.holds_kv
        )
        found = {"available": available, "evictable": evictable, "protected": protected, "running": private}
        if min(found.values()) < 0 or sum(found.values()) != worker.world.capacity_tokens:
            raise SimulationError(f"{found} do not add up to a pool of {worker.world.capacity_tokens} tokens")
        self._steps += 1
        if self._steps % TREE_CHECK_STEPS == 0:
            cache.sanity_check()

    def served(self, rid: str) -> None:
        """A request has been answered."""
        if rid in self._served:
            raise SimulationError(f"request {rid} was answered twice")
        self._served.add(rid)

    def end(self, requests: int) -> None:
        """All of ``requests`` have been answered, nothing is held any more, and the tree is sound."""
        if len(self._served) != requests:
            raise SimulationError(f"{len(self._served)} of {requests} requests were answered")
        if not self._worker.idle:
            raise SimulationError(f"requests are left: {[req.rid for req in self._worker.holders()]}")
        self.step()
        protected = self._worker.cache.protected_size()
        if protected:
            raise SimulationError(f"{protected} tokens are still locked after the last request")
        self._worker.cache.sanity_check()
