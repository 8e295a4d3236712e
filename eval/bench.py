"""Time one eviction, ours against stock LRU in the same run, as the number of idle trajectories grows.

Real caches over SGLang's real tree core and allocator; no model runs. Trajectories look like agents': a
shared system prompt, then turns of a prompt node and an output node. They fill the pool, so every
eviction has to free what is asked.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.sim.world import prepare_process

NEEDS = (1024, 8192)
SYSTEM_PROMPTS = 100
SYSTEM_TOKENS = 64
PROMPT_TOKENS = 300
"""About the median of new tokens and of output tokens per turn of recorded coding agents (276 and 167)."""
OUTPUT_TOKENS = 150


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("evict", "growth", "schedule"),
        help="evict: time of an eviction; growth: memory over trajectories; schedule: the scheduler's CPU time a "
        "step, on real servers (about 45 minutes)",
    )
    parser.add_argument(
        "--idle", default="10,100,1000,10000", help="idle trajectories (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="turns of 450 tokens each (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="timed evictions per case (default: %(default)s)"
    )
    parser.add_argument(
        "--waiting", default="10,200,2000", help="for schedule: length of the queue (default: %(default)s)"
    )
    parser.add_argument(
        "--servers", type=int, default=3, help="for schedule: of each kind, in turns (default: %(default)s)"
    )
    parser.add_argument("--trajectories", type=int, default=100_000, help="for growth (default: %(default)s)")
    parser.add_argument(
        "--core", choices=("rust", "python"), default="rust", help="tree core (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the rows as JSON to this file")


class Bench:
    """One cache with idle trajectories of equal shape."""

    def __init__(self, ours: bool, capacity: int, turns: int, core: str) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        from sglang_agentcache.cache.radix_cache import AgentRadixCache
        from sglang_agentcache.config import AgentCacheConfig
        from sglang_agentcache.trajectory.clock import Clock

        self.turns = turns
        self.allocator = TokenToKVPoolAllocator(capacity, torch.bfloat16, "cpu", None, False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
        self.seconds = 0.0
        self.cache: Any = (
            AgentRadixCache(params, AgentCacheConfig.parse("rr", None, 1), Clock(source=lambda: self.seconds))
            if ours
            else UnifiedRadixCache(params)
        )

    @property
    def tokens_each(self) -> int:
        """Private tokens of a trajectory."""
        return self.turns * (PROMPT_TOKENS + OUTPUT_TOKENS)

    def add(self, number: int) -> None:
        """One trajectory: its turns are inserted, then it is idle."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        prompt = number % SYSTEM_PROMPTS
        tokens = array("q", [prompt] * SYSTEM_TOKENS + [SYSTEM_PROMPTS + number] * self.tokens_each)
        shared = number >= SYSTEM_PROMPTS
        slots = self.allocator.alloc(len(tokens) - SYSTEM_TOKENS * shared)
        assert slots is not None
        if shared:
            # The tree has its own slots for what it holds already; these are never looked at.
            slots = torch.cat((torch.zeros(SYSTEM_TOKENS, dtype=slots.dtype), slots))
        done, node = SYSTEM_TOKENS * shared, None
        ends = [SYSTEM_TOKENS]
        for _ in range(self.turns):
            ends += [ends[-1] + PROMPT_TOKENS, ends[-1] + PROMPT_TOKENS + OUTPUT_TOKENS]
        for end in ends:
            result = self.cache.insert(
                InsertParams(key=RadixKey(tokens[:end]), value=slots[:end], prev_prefix_len=done)
            )
            done, node = end, result.last_device_node
        if hasattr(self.cache, "table"):
            self._turn_idle(number, tokens, node)

    def _turn_idle(self, number: int, tokens: array[int], node: int | None) -> None:
        from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
        from sglang_agentcache.trajectory.model import PathNode

        self.seconds += 1.0
        table, rid, namespace = self.cache.table, f"r{number}", Namespace()
        assert node is not None
        path = [PathNode(step.node_id, step.path_end) for step in self.cache.tails.path(node)]
        trajectory = table.begin(
            TrajectoryKey(namespace, f"t{number}"), rid, self.seconds, namespace=namespace
        )
        table.extend(
            trajectory,
            rid,
            path,
            prompt=tokens[: len(tokens) - OUTPUT_TOKENS],
            history_tokens=len(tokens),
            tokens=tokens,
            shared_with=lambda _node: 0,
        )
        table.end(rid, self.seconds)

    def evictions(self, need: int, rounds: int) -> Iterator[float]:
        """Seconds of each `evict_for_alloc` of `need` tokens, from a full pool."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        for _ in range(rounds):
            free = self.allocator.available_size()
            if free:
                self.allocator.alloc(free)
            if self.cache.evictable_size() < 2 * need:
                return
            started = time.perf_counter()
            self.cache.evict_for_alloc(EvictParams(num_tokens=need))
            yield time.perf_counter() - started
            assert self.allocator.available_size() >= need


def evict_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    counts = [int(count) for count in args.idle.split(",")]
    for count in counts:
        per_case: dict[tuple[str, int], list[float]] = {}
        for name in ("lru", "rr"):
            bench = Bench(
                name == "rr",
                count * (SYSTEM_TOKENS + args.turns * (PROMPT_TOKENS + OUTPUT_TOKENS)) + 1,
                args.turns,
                args.core,
            )
            for number in tqdm(range(count), desc=f"{name}: {count} idle", leave=False):
                bench.add(number)
            gc.collect()
            gc.disable()
            for need in NEEDS:
                per_case[name, need] = list(bench.evictions(need, args.rounds))
            gc.enable()
        for need in NEEDS:
            ours, stock = per_case["rr", need], per_case["lru", need]
            if min(len(ours), len(stock)) < 5:
                continue
            rows.append(
                {
                    "idle": count,
                    "need_tokens": need,
                    "rr_us": _microseconds(ours),
                    "lru_us": _microseconds(stock),
                    "ratio": round(statistics.median(ours) / statistics.median(stock), 2),
                    "rounds": min(len(ours), len(stock)),
                }
            )
    return rows


def _microseconds(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50": round(statistics.median(ordered) * 1e6, 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e6, 1),
    }


def growth_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Python memory of our tables: per idle trajectory, and after many have come and gone."""
    from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey

    bench = Bench(True, 200 * (SYSTEM_TOKENS + args.turns * 450) + 1, args.turns, args.core)
    bench.add(0)
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    for number in range(1, 101):
        bench.add(number)
    idle = (tracemalloc.get_traced_memory()[0] - base) / 100
    for number in range(101):
        bench.cache.complete(TrajectoryKey(Namespace(), f"t{number}"))
    rows = [{"idle_trajectory_bytes": round(idle), "tokens_each": bench.tokens_each}]
    for number in tqdm(range(1000, 1000 + args.trajectories), desc="finished trajectories"):
        bench.add(number)
        bench.cache.complete(TrajectoryKey(Namespace(), f"t{number}"))
        if (number - 999) % max(1, args.trajectories // 4) == 0:
            gc.collect()
            rows.append({"finished": number - 999, "traced_bytes": tracemalloc.get_traced_memory()[0]})
    tracemalloc.stop()
    return rows


def schedule_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The scheduler's time a step against stock's, on real servers."""
    from eval import scheduling_time

    counts, queues = ([int(count) for count in text.split(",")] for text in (args.idle, args.waiting))
    return scheduling_time.rows(counts, queues, args.servers)


def main(args: argparse.Namespace) -> int:
    prepare_process()
    rows = {"evict": evict_rows, "growth": growth_rows, "schedule": schedule_rows}[args.what](args)
    if args.what == "evict":
        print(
            f"{'idle':>7} {'tokens':>7} {'rr p50 us':>10} {'p99':>8} {'lru p50 us':>11} {'p99':>8} {'rr/lru':>7}"
        )
        for row in rows:
            print(
                f"{row['idle']:>7} {row['need_tokens']:>7} {row['rr_us']['p50']:>10} {row['rr_us']['p99']:>8}"
                f" {row['lru_us']['p50']:>11} {row['lru_us']['p99']:>8} {row['ratio']:>7}"
            )
    else:
        for row in rows:
            print(json.dumps(row))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0
