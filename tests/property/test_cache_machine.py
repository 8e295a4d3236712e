"""Random interleavings of everything a scheduler does, against a naive oracle, on both tree cores.

A panic of the Rust core kills the scheduler; this is what stands between a user and that. The number of
operations is `AGENTCACHE_STATE_MACHINE_OPS` on each tree core (`make soak` sets it).
"""

from __future__ import annotations

import os
from array import array

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglang.srt.managers.schedule_batch import Req

from sglang_agentcache.cache.eviction import AHEAD
from sglang_agentcache.config import CHUNK_TOKENS, AgentCacheConfig
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.table import PROBE_TOKENS, State
from tests.support.oracle import Oracle, Owner, Space
from tests.support.serving import CORES, PAGE_SIZES, Server

STEPS = 120
OPERATIONS = int(os.environ.get("AGENTCACHE_STATE_MACHINE_OPS", "12000"))
NAMES = ("a", "b", "c", "d", "e", "f")
SPACES: tuple[Space, ...] = ((None, None), ("lora", None), (None, "salt"), ("lora", "salt"))
QUEUED, PREFILLING, PREFILLED, DECODING = range(4)

seeds = st.integers(0, 2**16)
picks = st.integers(0, 63)


class Live:
    """A request in flight, as the oracle sees it."""

    def __init__(self, req: Req, owner: Owner, space: Space, final: bool) -> None:
        self.req, self.owner, self.space, self.final = req, owner, space, final
        self.phase = QUEUED
        self.lock = 0
        self.allocated = 0
        self.rejected = False


class CacheMachine(RuleBasedStateMachine):
    core = "python"
    page_size = 1

    @initialize(
        chunk=st.sampled_from((0, 1, 2.5, 6)),
        visit=st.sampled_from(("chunk", "leaf")),
        seed=seeds,
        full=st.booleans(),
    )
    def start(self, chunk: float, visit: str, seed: int, full: bool) -> None:
        chunk = int(chunk * self.page_size)
        config = AgentCacheConfig("rr", chunk, visit, {"tiers": "off"})
        self.capacity = (120 if self.page_size == 1 else 40) * self.page_size
        self.server = Server(self.core, self.page_size, self.capacity, config, max_length=1024 * 8)
        self.server.cache.all_owned_s = 0.0
        self.oracle = Oracle(self.page_size, chunk, visit)
        self.ahead = min(self.capacity // AHEAD, chunk // self.page_size * self.page_size or CHUNK_TOKENS)
        self.live: list[Live] = []
        self.count = 0
        for number, name in enumerate(NAMES[: 5 * full]):
            shared = self.words(seed, 4)
            self.arrive(self.named(name, SPACES[0]), SPACES[0], shared + self.words(seed + number), 2, False)
            self.to_the_end(self.live[-1], 3)

    # ---- helpers ----

    def words(self, seed: int, most: float = 5) -> list[int]:
        """Tokens in runs of equal ones: prefixes coincide now and then, and end on and off page boundaries."""
        tokens: list[int] = []
        for turn in range(1 + seed % 3):
            length = 1 + (seed * 7919 + turn * 104729) % max(1, int(most * self.page_size))
            tokens += [1 + (seed // 3 + turn) % 3] * length
        return tokens

    def one(self, live: list[Live], pick: int) -> Live:
        return live[pick % len(live)]

    def phase(self, *phases: int) -> list[Live]:
        return [live for live in self.live if live.phase in phases]

    @property
    def available(self) -> int:
        held = sum(self.held(live) for live in self.live)
        return self.capacity - self.oracle.tokens() - held

    def held(self, live: Live) -> int:
        if live.phase == QUEUED:
            return 0
        pages = -(-live.allocated // self.page_size) * self.page_size
        return pages - self.oracle.depth[live.lock] * self.page_size

    def named(self, name: str, space: Space) -> Owner:
        for owner in self.oracle.owners:
            if owner.name == name and owner.space == space and not owner.closing:
                return owner
        return Owner(space, name)

    def arrive(self, owner: Owner | None, space: Space, tokens: list[int], outputs: int, final: bool) -> None:
        """Queue a request of a trajectory, or of none that is named."""
        tokens = tokens[: self.capacity // 2]
        self.count += 1
        rid = f"r{self.count}"
        req = self.server.request(
            rid,
            tokens,
            trajectory=None if owner is None else owner.name,
            final=final,
            output_tokens=outputs,
            extra_key=space[0],
            cache_salt=space[1],
        )
        idle_before = [other for other in self.oracle.owners if not other.requests]
        self.server.arrive(req)
        entry = self.server.cache.table.of_request(rid)
        if owner is None:
            owner = self.check_lineage(entry, idle_before, tokens, space)
        assert owner.table_entry in (None, entry), "an id belongs to one trajectory at a time"
        owner.table_entry = entry
        self.oracle.begin(owner, rid)
        self.live.append(Live(req, owner, space, final))

    def check_lineage(self, entry: object, idle: list[Owner], tokens: list[int], space: Space) -> Owner:
        """Whom a request without an id was taken for: whoever's last prompt it extends, and nobody else."""
        extended = []
        for owner in idle:
            if not owner.lines or owner.space != space:
                continue
            prompt = list(owner.lines[-1].prompt)
            cut = len(prompt) // self.page_size * self.page_size
            if owner.table_entry is entry:
                resident = min(cut, self.oracle.depth[owner.lines[-1].tail] * self.page_size)
                assert len(prompt) < len(tokens) and tokens[:resident] == prompt[:resident]
                assert tokens[: len(prompt)][-PROBE_TOKENS:] == prompt[-PROBE_TOKENS:]
                return owner
            if len(prompt) < len(tokens) and tokens[: len(prompt)] == prompt:
                extended.append(owner)
        assert entry not in [owner.table_entry for owner in idle]
        if len(extended) == 1:
            owner = extended[0]
            whole = len(owner.history) // self.page_size * self.page_size
            simple = (
                list(owner.lines[-1].prompt) == owner.prompt
                and tokens[:whole] == owner.history[:whole]
                and self.oracle.depth[owner.lines[-1].tail] * self.page_size == whole
                and self.oracle.hit(self.oracle.pages(tokens, space)) * self.page_size == whole
            )
            assert not simple, "the request extends exactly one idle trajectory and was not taken for it"
        return Owner(space, None)

    def allocate(self, tokens: int) -> None:
        """What SGLang evicts before it allocates."""
        shortfall = self.server.needed(tokens) - self.available
        if shortfall > 0:
            self.oracle.drain()
            self.reclaim(self.server.needed(tokens) - self.available)

    def reclaim(self, wanted: int) -> None:
        if wanted <= 0:
            return
        rest = wanted - self.oracle.reclaim(max(wanted, self.ahead))
        if rest <= 0:
            return
        oracle = self.oracle
        left: set[int] = set()
        for leaf in oracle.leaves():
            path = oracle.path(leaf)[::-1]
            left.update(path[: self.resident(leaf) // self.page_size])
        gone = oracle.resident - left
        assert not any(oracle.anchors[page] for page in gone), "something locked was evicted"
        active_tails = {
            line.tail for owner in oracle.owners if owner.requests for line in owner.lines if line.tail
        }
        hit_active = gone & active_tails
        oracle.observe(left)
        self.resync()
        tails_now = {
            line.tail for owner in oracle.owners if owner.requests for line in owner.lines if line.tail
        }
        free = [page for page in oracle.leaves() if not oracle.anchors[page]]
        if hit_active:
            assert all(page in tails_now for page in free), "an active trajectory lost KV before others did"
        if len(gone) * self.page_size < rest:
            assert not free, f"{rest} tokens were wanted, {len(gone) * self.page_size} went, {free} are free"

    def resync(self) -> None:
        """SGLang's own order decides when parked trajectories may rejoin; that, and no more, is taken over."""
        joined = {
            entry.serial: place
            for place, entry in enumerate(t for r in self.server.cache.policy._rounds for t in r.values())
        }
        returned = [
            owner
            for owner in self.oracle.owners
            if owner not in self.oracle.round and not owner.requests and owner.table_entry.serial in joined
        ]
        stale = [owner for owner in self.oracle.round if owner in returned]
        assert not stale
        for owner in sorted(returned, key=lambda owner: joined[owner.table_entry.serial]):
            owner.parked = False
            self.oracle.round.append(owner)
        order = {id(owner): joined.get(owner.table_entry.serial, -1) for owner in self.oracle.round}
        self.oracle.round.sort(key=lambda owner: order[id(owner)])

    def resident(self, page: int) -> int:
        space = self.oracle.space[page]
        return self.server.resident(self.oracle.text(page), *space)

    def publish(self, live: Live, up_to: int) -> None:
        """A checkpoint: the tokens go into the tree, the lock moves to where they end."""
        tokens = (live.req.origin_input_ids + live.req.output_ids)[:up_to]
        end = self.oracle.insert(tokens, len(live.req.origin_input_ids), live.space)
        if not end:
            return
        self.oracle.unlock(live.lock)
        self.oracle.lock(end)
        live.lock = end

    def record(self, live: Live, rewrites: bool) -> None:
        prompt = list(live.req.origin_input_ids)
        length = len(prompt) + len(live.req.output_ids)
        self.oracle.record(live.owner, live.req.rid, live.lock, prompt, length, rewrites)

    def leave(self, live: Live, *, released: bool, rewrites: bool) -> None:
        owner, rid = live.owner, live.req.rid
        self.live.remove(live)
        if released:
            self.oracle.unlock(live.lock)
            self.record(live, rewrites)
        self.oracle.leave(rid, owner, live.final)

    def finished(self, live: Live) -> None:
        req = live.req
        self.publish(live, live.allocated)
        if not live.rejected:
            live.owner.history = list(req.origin_input_ids) + list(req.output_ids)
            live.owner.prompt = list(req.origin_input_ids)
        self.leave(live, released=True, rewrites=not live.rejected)

    def to_the_end(self, live: Live, chunk: int | None) -> None:
        """Admit a request and run it until it has finished, or has no room."""
        self.admit_one(live, chunk)
        while live in self.live and live.phase != QUEUED:
            self.forward(live, 1 + self.count % 3, 3)
        if live in self.live:
            self.server.abort_queued(live.req)
            self.leave(live, released=False, rewrites=False)

    # ---- requests arrive ----

    @rule(name=st.sampled_from(NAMES), space=picks, seed=seeds, outputs=st.integers(1, 4), final=picks)
    def new(self, name: str, space: int, seed: int, outputs: int, final: int) -> None:
        where = SPACES[0 if space < 40 else space % 4]
        self.arrive(self.named(name, where), where, self.words(seed), outputs, final % 8 == 0)

    @rule(space=picks, seed=seeds, outputs=st.integers(1, 4))
    def new_anonymous(self, space: int, seed: int, outputs: int) -> None:
        where = SPACES[0 if space < 40 else space % 4]
        self.arrive(None, where, self.words(seed), outputs, False)

    @precondition(lambda self: any(owner.history for owner in self.oracle.owners))
    @rule(pick=picks, seed=seeds, outputs=st.integers(1, 4), how=st.integers(0, 9), final=picks)
    def come_back(self, pick: int, seed: int, outputs: int, how: int, final: int) -> None:
        """The next turn: the history extended, rewritten, or with its last output left out."""
        known = [owner for owner in self.oracle.owners if owner.history]
        owner = known[pick % len(known)]
        history = owner.history
        if how == 0:
            history = [*history[: seed % (len(history) + 1)], 4]
        elif how == 1:
            history = [*owner.prompt, 4]
        elif how == 2:
            history = [5, *history]
        tokens = history + self.words(seed, 3)
        named = not owner.anonymous and how != 3 and not owner.closing
        self.arrive(owner if named else None, owner.space, tokens, outputs, named and final % 8 == 0)

    @precondition(lambda self: any(owner.history for owner in self.oracle.owners))
    @rule(pick=picks, name=st.sampled_from(NAMES), seed=seeds, whole=picks, outputs=st.integers(1, 4))
    def fork(self, pick: int, name: str, seed: int, whole: int, outputs: int) -> None:
        """A sub-agent starts from another trajectory's prompt or whole history, perhaps in another namespace."""
        known = [owner for owner in self.oracle.owners if owner.history]
        parent = known[pick % len(known)]
        base = parent.history if whole % 2 else parent.prompt
        space = SPACES[whole % 4] if whole > 56 else parent.space
        tokens = list(base) + (self.words(seed, 2) if whole % 4 else [6])
        self.arrive(self.named(name, space), space, tokens, outputs, False)

    # ---- requests run ----

    @precondition(lambda self: self.phase(QUEUED))
    @rule(pick=picks, chunk=st.sampled_from((None, 1, 3)))
    def admit(self, pick: int, chunk: int | None) -> None:
        self.admit_one(self.one(self.phase(QUEUED), pick), chunk)

    def admit_one(self, live: Live, chunk: int | None) -> None:
        req = live.req
        tokens = req.origin_input_ids + req.output_ids
        hit = self.oracle.match(tokens[: len(tokens) - 1], live.space)
        self.oracle.lock(hit)
        admitted = self.server.admit(req, None if chunk is None else chunk * self.page_size)
        assert req.prefix_len == self.oracle.depth[hit] * self.page_size
        if not admitted:
            self.oracle.unlock(hit)
            return
        live.lock = hit
        self.allocate(req.extend_end - req.prefix_len)
        live.allocated = req.extend_end
        live.phase = PREFILLED if self.server.prefilled(req) else PREFILLING

    @precondition(lambda self: self.phase(QUEUED))
    @rule(pick=picks)
    def look(self, pick: int) -> None:
        """A waiting request is matched and not admitted."""
        live = self.one(self.phase(QUEUED), pick)
        tokens = live.req.origin_input_ids + live.req.output_ids
        hit = self.oracle.match(tokens[: len(tokens) - 1], live.space)
        assert self.server.match(live.req) == self.oracle.depth[hit] * self.page_size

    @precondition(lambda self: self.phase(PREFILLING, PREFILLED, DECODING))
    @rule(pick=picks, token=st.integers(1, 3), chunk=st.sampled_from((1, 3, 9)))
    def run(self, pick: int, token: int, chunk: int) -> None:
        """One forward of one request: its next chunk, its first token, or one decode step."""
        self.forward(self.one(self.phase(PREFILLING, PREFILLED, DECODING), pick), token, chunk)

    def forward(self, live: Live, token: int, chunk: int) -> None:
        req = live.req
        if live.phase == PREFILLING:
            before = req.extend_end
            grown = self.server.next_chunk(req, chunk * self.page_size)
            self.publish(live, before)
            if not grown:
                self.drop_prefilling(live)
                return
            self.allocate(req.extend_end - before)
            live.allocated = req.extend_end
            live.phase = PREFILLED if self.server.prefilled(req) else PREFILLING
        elif live.phase == PREFILLED:
            self.server.first_token(req, token)
            if req.finished():
                self.finished(live)
            else:
                self.publish(live, live.allocated)
                live.phase = DECODING
        else:
            if not self.server.decode_step(req, token):
                self.back_to_the_queue(live, 0)
                return
            self.allocate(1 if self.page_size == 1 else 0)
            live.allocated += 1
            if req.finished():
                self.server.release_finished(req)
                self.finished(live)

    @precondition(lambda self: self.live)
    @rule(pick=picks, chunk=st.sampled_from((None, 1, 3)))
    def run_to_the_end(self, pick: int, chunk: int | None) -> None:
        live = self.one(self.live, pick)
        if live.phase == QUEUED:
            self.to_the_end(live, chunk)
        while live in self.live and live.phase != QUEUED:
            self.forward(live, 1 + pick % 3, 3)

    @rule(pick=picks, seed=seeds, outputs=st.integers(1, 4), final=picks)
    def turn(self, pick: int, seed: int, outputs: int, final: int) -> None:
        """A trajectory's next turn from the queue to its end, or the first of a new one."""
        owner = self.named(NAMES[pick % len(NAMES)], SPACES[0 if pick < 48 else pick % 4])
        tokens = list(owner.history) + self.words(seed, 4)
        self.arrive(owner, owner.space, tokens, outputs, final % 16 == 0)
        self.to_the_end(self.live[-1], (None, 2)[pick % 2])

    @precondition(lambda self: any(owner.history and not owner.anonymous for owner in self.oracle.owners))
    @rule(pick=picks, cut=st.integers(0, 9), seed=seeds)
    def compact(self, pick: int, cut: int, seed: int) -> None:
        """A trajectory rewrites its history from some point on, and goes on from there."""
        known = [
            owner
            for owner in self.oracle.owners
            if owner.history and not owner.closing and not owner.anonymous
        ]
        if known:
            owner = known[pick % len(known)]
            kept = owner.history[: len(owner.history) * cut // 10]
            self.arrive(owner, owner.space, [*kept, 7, *self.words(seed, 3)], 1 + seed % 3, False)
            self.to_the_end(self.live[-1], (None, 1)[seed % 2])

    # ---- requests leave otherwise ----

    def drop_prefilling(self, live: Live) -> None:
        live.req.to_finish = None
        self.server.abort_prefilling(live.req)
        self.leave(live, released=True, rewrites=False)

    @precondition(lambda self: self.phase(QUEUED))
    @rule(pick=picks)
    def abort_queued(self, pick: int) -> None:
        live = self.one(self.phase(QUEUED), pick)
        self.server.abort_queued(live.req)
        self.leave(live, released=False, rewrites=False)

    @precondition(lambda self: self.phase(PREFILLING))
    @rule(pick=picks)
    def abort_prefilling(self, pick: int) -> None:
        self.drop_prefilling(self.one(self.phase(PREFILLING), pick))

    @precondition(lambda self: self.phase(DECODING))
    @rule(pick=picks)
    def abort_running(self, pick: int) -> None:
        live = self.one(self.phase(DECODING), pick)
        self.server.abort_running(live.req)
        self.publish(live, live.allocated)
        self.leave(live, released=True, rewrites=False)

    @precondition(lambda self: self.phase(QUEUED))
    @rule(pick=picks)
    def reject(self, pick: int) -> None:
        """A queued request is cut down to a stub of one token, which still runs."""
        live = self.one(self.phase(QUEUED), pick)
        if not live.req.output_ids and len(live.req.origin_input_ids) > 1:
            self.server.stub(live.req)
            live.rejected = True

    @precondition(lambda self: self.phase(PREFILLED, DECODING))
    @rule(pick=picks, free=st.integers(0, 8))
    def retract(self, pick: int, free: int) -> None:
        self.back_to_the_queue(self.one(self.phase(PREFILLED, DECODING), pick), free)

    def back_to_the_queue(self, live: Live, free: int) -> None:
        self.server.retract(live.req, free * self.page_size)
        self.oracle.unlock(live.lock)
        self.record(live, rewrites=False)
        live.phase, live.lock, live.allocated = QUEUED, 0, 0
        if free * self.page_size > self.available:
            self.oracle.drain()
            self.reclaim(free * self.page_size - self.available)

    # ---- the pool, completions ----

    @rule(pages=st.integers(1, 30))
    def evict(self, pages: int) -> None:
        wanted = pages * self.page_size - pages % 2 * (self.page_size // 2)
        evicted = self.server.evict(wanted)
        self.oracle.drain()
        before = self.oracle.tokens()
        self.reclaim(wanted)
        assert evicted == before - self.oracle.tokens()

    @rule(pages=st.integers(1, 200))
    def free_up(self, pages: int) -> None:
        wanted = min(pages * self.page_size, self.capacity)
        self.server.free_up(wanted)
        if wanted > self.available:
            self.oracle.drain()
            self.reclaim(wanted - self.available)

    @rule(name=st.sampled_from(NAMES), space=picks)
    def complete(self, name: str, space: int) -> None:
        where = SPACES[0 if space < 40 else space % 4]
        owner = self.named(name, where)
        released = self.server.cache.complete(TrajectoryKey(Namespace(*where), name))
        if owner not in self.oracle.owners:
            assert released is None
            return
        owner.closing = True
        expected = 0 if owner.requests else self.oracle.release(owner)
        assert released.released_tokens == expected

    @precondition(lambda self: all(live.phase == QUEUED for live in self.live))
    @rule(really=picks)
    def flush(self, really: int) -> None:
        if really % 8:
            return
        self.server.flush()
        self.oracle.clear()

    # ---- always ----

    @invariant()
    def holds(self) -> None:
        server, oracle, cache = self.server, self.oracle, self.server.cache
        for leaf in oracle.leaves():
            assert self.resident(leaf) == oracle.depth[leaf] * self.page_size
            server.check_contents(oracle.text(leaf), *oracle.space[leaf])
        assert cache.total_size()[0] == oracle.tokens()
        assert server.allocator.available_size() == self.available
        running = [live.req for live in self.live if live.phase != QUEUED]
        server.check_pool(running)
        locked = {page for anchor in oracle.anchors for page in oracle.path(anchor)}
        assert cache.protected_size() == len(locked) * self.page_size

        order = [entry for tier in cache.policy._rounds for entry in tier.values()]
        assert order == [owner.table_entry for owner in oracle.round]
        assert len(cache._deferred) >= len(oracle.doomed)
        for owner in oracle.owners:
            entry = owner.table_entry
            if owner.requests:
                assert entry.state is State.ACTIVE
                assert entry.requests.keys() == owner.requests.keys()
            else:
                assert entry.state is State.IDLE
                assert owner in oracle.round or not oracle.cuttable(owner), (
                    "parked, and has something to give"
                )
            if owner.name is not None and not owner.closing:
                assert cache.table.get(entry.key) is entry
            tails = [oracle.depth[line.tail] * self.page_size for line in owner.lines]
            assert [branch.resident_tokens for branch in entry.branches] == tails
            if owner.lines:
                assert entry.missing_tokens == owner.lines[-1].length - tails[-1]
            for line, branch in zip(owner.lines, entry.branches, strict=True):
                assert branch.tokens[: branch.resident_tokens] == array("q", oracle.text(line.tail))
        known = {id(owner.table_entry) for owner in oracle.owners}
        tails_in_table = {id(b.trajectory) for at in cache.table._tails.values() for b in at}
        assert tails_in_table <= known, "the table holds tails of a trajectory that is gone"
        assert len(cache.table._by_request) == len(cache._in_flight) == len(self.live)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("core", CORES)
def test_cache_agrees_with_the_oracle(core: str, page_size: int) -> None:
    machine = type(
        f"CacheMachine_{core}_{page_size}", (CacheMachine,), {"core": core, "page_size": page_size}
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, OPERATIONS // STEPS // len(PAGE_SIZES)),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            report_multiple_bugs=False,
        ),
    )
