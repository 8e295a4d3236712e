"""A scheduler of a server under test: slow and shuffled where ranks may differ, and every decision written down.

The files, in the folder that `FOLDER` names: `rank<R>.json` (what is this rank's own), `rank<R>.decisions` (one line
each, which must be equal on all ranks), `rank<R>.clocks` (true and own time, every so often). A file `own-clocks` put
there sets the fault that the package must not have: every rank orders by its own clock.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sitecustomize

FOLDER = "AGENTCACHE_TEST_FOLDER"
HELD_FOR = 4
"""A side message is held back for less than so many polls of the leader."""
LATE_S = 0.02


def run(rank: int, scheduler_main: Callable[..., None], *args: Any) -> None:
    folder = Path(os.environ[FOLDER])
    own = {"hash": hash("x"), "hash_seed": os.environ["PYTHONHASHSEED"], "pid": os.getpid()}
    (folder / f"rank{rank}.json").write_text(json.dumps(own))
    # Of this rank alone, and different each time.
    chance = random.Random(os.urandom(8))
    read_another_predictor(rank)
    be_late(rank, chance)
    if rank == 0:
        shuffle_side_messages(chance)
    write_down_decisions(rank, folder)
    fail_on_request(folder / "own-clocks")
    scheduler_main(*args)


def read_another_predictor(rank: int) -> None:
    """What is on a rank's disk is not what is on the leader's."""
    from sglang_agentcache.eviction import ranked
    from sglang_agentcache.predictor.tool_calls import ToolCall

    load_default = ranked.load_default

    def load_other() -> Any:
        predictor = load_default()
        for seconds in range(200 * rank):
            predictor.observe(predictor.prepare(ToolCall("bash", '{"command": "ls"}')), float(seconds))
        return predictor

    ranked.load_default = load_other


def be_late(rank: int, chance: random.Random) -> None:
    """This rank's scheduler stops for a moment now and then; each at other times."""
    from sglang_agentcache.scheduling.scheduler import AgentScheduler
    from sglang_agentcache.scheduling.waits import Waits

    def late(wrapped: Callable[..., Any], share: float) -> Callable[..., Any]:
        def wait_first(*args: Any) -> Any:
            if chance.random() < share * rank:
                time.sleep(chance.random() * LATE_S)
            return wrapped(*args)

        return wait_first

    AgentScheduler.process_input_requests = late(AgentScheduler.process_input_requests, 0.05)
    AgentScheduler.handle_dumper_control = late(AgentScheduler.handle_dumper_control, 1.0)
    Waits.tool_calls_of = late(Waits.tool_calls_of, 0.05)


def shuffle_side_messages(chance: random.Random) -> None:
    """The leader takes completions, reloads and its own ticks late and out of order."""
    from sglang.srt.managers.io_struct import CloseSessionReqInput, DumperControlReqInput
    from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver

    from sglang_agentcache.scheduling.scheduler import AgentScheduler
    from sglang_agentcache.trajectory.clock import Tick

    def held_back(kinds: tuple[type, ...]) -> Callable[[list[Any]], list[Any]]:
        held: list[tuple[int, Any]] = []

        def pass_on(messages: list[Any]) -> list[Any]:
            held.extend((chance.randrange(HELD_FOR), one) for one in messages if isinstance(one, kinds))
            due = [message for polls, message in held if polls == 0]
            held[:] = [(polls - 1, message) for polls, message in held if polls > 0]
            chance.shuffle(due)
            return [*(one for one in messages if not isinstance(one, kinds)), *due]

        return pass_on

    control, ticks = held_back((DumperControlReqInput, CloseSessionReqInput)), held_back((Tick,))
    pull, poll = SchedulerRequestReceiver._pull_raw_reqs, AgentScheduler._poll_timeout_aborts

    def pull_late(receiver: Any) -> list[Any] | None:
        pulled = pull(receiver)
        return None if pulled is None else control(pulled)

    SchedulerRequestReceiver._pull_raw_reqs = pull_late
    AgentScheduler._poll_timeout_aborts = lambda scheduler: ticks(poll(scheduler))


def write_down_decisions(rank: int, folder: Path) -> None:
    from sglang_agentcache.cache.radix_cache import AgentRadixCache
    from sglang_agentcache.scheduling.admission import Door
    from sglang_agentcache.scheduling.waits import Waits

    decisions = (folder / f"rank{rank}.decisions").open("w", buffering=1)
    clocks = (folder / f"rank{rank}.clocks").open("w", buffering=1)
    counted = 0

    evict, cut, left = AgentRadixCache._evict_idle, AgentRadixCache._cut, AgentRadixCache._left_device
    complete = AgentRadixCache.complete
    returned, reload, enter = Waits.returned, Waits.reload, Door._note_entry

    def evict_(cache: Any, enough: Any, tracker: Any) -> None:
        if sitecustomize.jumping_since is None:
            sitecustomize.jumping_since = time.true_monotonic()  # type: ignore[attr-defined]
        decisions.write(f"evict at {cache.clock.now()}\n")
        evict(cache, enough, tracker)

    def cut_(cache: Any, trajectory: Any, tracker: Any) -> int:
        nonlocal counted
        freed: int = cut(cache, trajectory, tracker)
        decisions.write(f"cut {list(trajectory.key)} {freed}\n")
        counted += 1
        if counted % 50 == 0:
            clocks.write(f"{time.true_monotonic()} {time.monotonic()}\n")  # type: ignore[attr-defined]
        return freed

    def left_(cache: Any, step: Any) -> None:
        if step is not None:
            decisions.write(f"leaf {step.node_id} {step.path_start} {step.path_end}\n")
        left(cache, step)

    def complete_(cache: Any, key: Any) -> Any:
        released = complete(cache, key)
        decisions.write(f"complete {list(key)} {released}\n")
        return released

    def returned_(waits: Any, trajectory: Any, idle_s: float) -> None:
        # Without a policy that learns only the rank with the call log is told.
        if waits.policy is not None:
            decisions.write(f"return {list(trajectory.key)} {idle_s} {trajectory.hints.tool_calls}\n")
        returned(waits, trajectory, idle_s)

    def reload_(waits: Any, body: object) -> Any:
        artefact = reload(waits, body)
        decisions.write(f"reload {artefact}\n")
        return artefact

    def enter_(door: Any, reason: str, waited_s: float) -> None:
        decisions.write(f"enter {reason} {waited_s}\n")
        enter(door, reason, waited_s)

    AgentRadixCache._evict_idle, AgentRadixCache._cut, AgentRadixCache._left_device = evict_, cut_, left_
    AgentRadixCache.complete = complete_
    Waits.returned, Waits.reload, Door._note_entry = returned_, reload_, enter_


def fail_on_request(switch: Path) -> None:
    """As if the cache had been made with a clock of its own on each rank, once the file is there."""
    from sglang_agentcache.trajectory.clock import Clock

    now = Clock.now

    def now_(clock: Clock) -> float:
        if clock.shared and switch.exists():
            clock.shared = False
        return now(clock)

    Clock.now = now_  # type: ignore[method-assign]
