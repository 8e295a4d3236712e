"""Fits the gaps of a replay to the speed of the machine, so that the server is busy but does not saturate.

A saturated server has every agent waiting in its queue: all are active, none is idle, and no eviction
policy has a choice. Contexts and pool cannot correct that, idle time relative to service time can.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from eval.client import Client
from eval.tokens import TokenSource
from eval.trace import Trajectory

PROBES = 5
DECODE_STEPS = 16
BATCH = 8
"""Requests at once in the probe of a decode step's growth with its batch."""
MIN_GAP_FACTOR = 0.02


@dataclass(frozen=True)
class Speed:
    """Seconds, measured on an idle server at one prompt length; ``cold_s`` and ``cached_s`` are whole requests
    of one output token, at the client."""

    prompt_tokens: int
    cold_s: float
    cached_s: float
    decode_step_s: float
    """Of one request alone."""
    decode_request_s: float = 0.0
    """What each further request in the batch adds to a decode step."""

    def describe(self) -> str:
        """One line for the log."""
        return (
            f"speed: a prompt of {self.prompt_tokens} tokens takes {self.cold_s * 1e3:.0f} ms cold, "
            f"{self.cached_s * 1e3:.0f} ms cached; a decode step {self.decode_step_s * 1e3:.1f} ms, "
            f"{self.decode_request_s * 1e3:.1f} ms more for each further request in it"
        )


async def _probe(url: str, prompt_tokens: int, source: TokenSource) -> Speed:
    cold, cached, step, wide = [], [], [], []
    async with Client(url) as client:

        async def total_s(prompt: list[int], tokens: int) -> float:
            return (await client.generate(prompt, tokens, None)).total_s

        async def together_s(prompt: list[int], tokens: int) -> float:
            return max(await asyncio.gather(*(total_s(prompt, tokens) for _ in range(BATCH))))

        for number in range(PROBES):
            prompt = source.draw(prompt_tokens, "probe", number)
            cold.append(await total_s(prompt, 1))
            cached.append(await total_s(prompt, 1))
            # Whole requests: with overlap the first token of a longer one is seen a step late.
            step.append((await total_s(prompt, 1 + DECODE_STEPS) - cached[-1]) / DECODE_STEPS)
            short = await together_s(prompt, 1)
            wide.append((await together_s(prompt, 1 + DECODE_STEPS) - short) / DECODE_STEPS)
    alone = statistics.median(step)
    more = max(0.0, statistics.median(wide) - alone) / (BATCH - 1)
    return Speed(prompt_tokens, statistics.median(cold), statistics.median(cached), alone, more)


def probe(url: str, prompt_tokens: int, seed: int) -> Speed:
    """Measure a server. Its cache holds the probes' prompts afterwards: flush it. Raises RequestFailed."""
    return asyncio.run(_probe(url, prompt_tokens, TokenSource(seed)))


def service_s(trajectories: Sequence[Trajectory], speed: Speed, lost_share: float) -> float:
    """Expected server time of one request, if returning requests miss ``lost_share`` of their history.

    Prefills run one after the other, decode steps are shared by about two requests at a time.
    """
    turns = [turn for item in trajectories for turn in item.turns]
    uncached = statistics.fmean(turn.new_input_tokens + lost_share * turn.kept_tokens for turn in turns)
    decode = statistics.fmean(turn.output_tokens for turn in turns) * speed.decode_step_s / 2
    per_token = max(0.0, speed.cold_s - speed.cached_s) / speed.prompt_tokens
    return speed.cached_s + uncached * per_token + decode


def gap_factor(
    trajectories: Sequence[Trajectory], service: float, concurrency: int, utilisation: float, longest_s: float
) -> float:
    """Factor on gaps at which ``concurrency`` agents keep the server busy for ``utilisation`` of the time.

    Smaller if the replay would otherwise take longer than ``longest_s`` seconds with all agents at work.
    """
    gaps = [turn.gap_s or 0.0 for item in trajectories for turn in item.turns[1:]]
    turns = sum(len(item.turns) for item in trajectories)
    wanted = service * (concurrency / utilisation - 1)
    affordable = longest_s * concurrency / turns - service
    return max(MIN_GAP_FACTOR, min(wanted, affordable) * turns / sum(gaps)) if sum(gaps) else 1.0
