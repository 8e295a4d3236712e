"""The scheduler's CPU time a step on a real CPU server: stock SGLang against ours.

Every server has a pool full of idle trajectories and a queue of a given length; requests continue idle
trajectories or start new ones. What is compared is the main thread's time outside the forward pass
(`eval.step_timer`), averaged over the steps of a run: requests arrive and finish in few of them. Two servers alike
differ by some 10 %, so several of each kind take turns, and the median of their ratios counts.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval import counters, step_timer
from eval.policies import OURS, POLICIES, STOCK, Policy
from eval.server import CPU_ENVIRONMENT, Server, without_our_plugin
from eval.tiny_model import TinyModel, write_tiny_model

HISTORY_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = 64, 32, 160
"""Outputs are on average as long as recorded coding agents' (the median turn has 167 tokens): it decides how many
steps pass between two requests. The rest is short, for a CPU."""
RUNNING = 32
PREFILL_TOKENS = 512
FILL_BATCH = 500
MEASURED_STEPS = 1_000
"""After so many steps with a queue of the wanted length, the requests that are left are aborted."""
POLL_S = 0.5
CHUNK_TOKENS = 1024
CASES: Mapping[str, Policy] = {
    "stock": POLICIES["lru"],
    "rr": POLICIES["rr"],
    "convex, prefix-aware, admission": Policy(
        OURS,
        (
            *("--radix-eviction-policy", "convex", "--schedule-policy", "prefix-aware"),
            *("--agentcache-admission", "auto"),
        ),
        config={},
    ),
}


class Loaded:
    """A running server and the agents that have been on it."""

    def __init__(self, url: str, steps: Path, seed: int) -> None:
        self._url, self._steps = url, steps
        self._random = random.Random(seed)
        self._histories: list[list[int]] = []

    def fill(self, idle: int) -> None:
        """So many trajectories, all idle."""
        while len(self._histories) < idle:
            count = min(FILL_BATCH, idle - len(self._histories))
            first = len(self._histories)
            self._histories += [self._tokens(HISTORY_TOKENS) for _ in range(count)]
            self._send(range(first, first + count), [1] * count)

    def measure(self, waiting: int) -> list[step_timer.Step]:
        """The steps planned while half to one and a half times so many requests were waiting."""
        found: list[step_timer.Step] = []
        seen = sum(1 for _ in step_timer.read(self._steps))
        count = RUNNING + waiting + waiting // 2
        while len(found) < MEASURED_STEPS:
            agents = range(len(self._histories))
            chosen = self._random.sample(agents, min(count, len(agents)))
            new = range(len(agents), len(agents) + count - len(chosen))
            self._histories += [[] for _ in new]
            for agent in (*chosen, *new):
                self._histories[agent] = self._histories[agent][:HISTORY_TOKENS] + self._tokens(NEW_TOKENS)
            # Not all alike, so that requests end one by one.
            outputs = [self._random.randint(1, 2 * OUTPUT_TOKENS - 1) for _ in range(count)]
            sending = threading.Thread(target=self._send, args=([*chosen, *new], outputs))
            sending.start()
            while sending.is_alive():
                sending.join(POLL_S)
                recent = list(step_timer.read(self._steps, seen))
                seen += len(recent)
                found += [step for step in recent if waiting / 2 <= step.waiting <= 1.5 * waiting]
                if len(found) >= MEASURED_STEPS:
                    counters.post(self._url, "/abort_request", {"abort_all": True})
        return found

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1, 250) for _ in range(count)]

    def _send(self, agents: Sequence[int], outputs: Sequence[int]) -> None:
        body = {
            "input_ids": [self._histories[agent] for agent in agents],
            "sampling_params": [
                {
                    "max_new_tokens": tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "custom_params": {"agentcache": {"trajectory_id": f"t{agent}"}},
                }
                for agent, tokens in zip(agents, outputs, strict=True)
            ],
        }
        counters.post(self._url, "/generate", body, timeout_s=600.0)


def run(name: str, model: Path, idle: int, waiting: Sequence[int], folder: Path) -> Iterator[dict[str, Any]]:
    """Start one server; yields a row for each length of the queue."""
    case = CASES[name]
    environment = step_timer.installed_in(folder) | CPU_ENVIRONMENT
    if case.module == STOCK:
        allowed = without_our_plugin()["SGLANG_PLUGINS"].split(",")
        environment["SGLANG_PLUGINS"] = ",".join([*allowed, step_timer.NAME])
    arguments = (
        *("--device", "cpu", "--model-path", str(model), "--load-format", "dummy", "--sleep-on-idle"),
        *("--max-total-tokens", str(max(idle * (HISTORY_TOKENS + 1), 8192))),
        *("--max-running-requests", str(RUNNING), "--chunked-prefill-size", str(PREFILL_TOKENS)),
        *case.command(CHUNK_TOKENS),
    )
    with Server(case.module, arguments, folder / "server.log", environment=environment) as server:
        server.wait_healthy()
        loaded = Loaded(server.url, folder / "steps.jsonl", seed=0)
        loaded.fill(idle)
        for queue in waiting:
            steps = loaded.measure(queue)
            times = [step.scheduling_s for step in steps]
            yield {
                "case": name,
                "idle": idle,
                "waiting": queue,
                "steps": len(steps),
                "mean_us": round(statistics.fmean(times) * 1e6, 1),
                "median_us": round(statistics.median(times) * 1e6, 1),
            }


def rows(idle: Sequence[int], waiting: Sequence[int], servers: int) -> list[dict[str, Any]]:
    """Every case at every number of idle trajectories, on so many servers of each kind.

    Returns:
        rows as `run` gives them, each figure the median of the servers, with `ratios`, of the mean by that of the
        stock server just before, and their median, `ratio`.
    """
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        write_tiny_model(model, TinyModel())
        # Case by case at each size: what is compared runs within minutes of each other.
        for count, turn, name in tqdm(list(itertools.product(idle, range(servers), CASES)), unit="server"):
            folder = Path(scratch) / f"{count}-{turn}-{name}"
            folder.mkdir()
            for row in run(name, model, count, waiting, folder):
                found.setdefault((count, row["waiting"], name), []).append(row)
    return [_median(alike, found[count, queue, "stock"]) for (count, queue, _), alike in found.items()]


def _median(alike: Sequence[dict[str, Any]], stock: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["mean_us"] / base["mean_us"] for row, base in zip(alike, stock, strict=True)]
    figures = {
        name: round(statistics.median(row[name] for row in alike), 1)
        for name in ("steps", "mean_us", "median_us")
    }
    ratio = {"ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
    return alike[0] | figures | ratio
