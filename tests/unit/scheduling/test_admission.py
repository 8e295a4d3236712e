"""The door: who waits, who passes, and in what order they are let in."""

from array import array
from dataclasses import dataclass, field

import pytest

from sglang_agentcache import flags
from sglang_agentcache.config import ConfigError
from sglang_agentcache.scheduling.admission import IDLE_S, LOOK_S, PATIENCE_POOLS, Door
from sglang_agentcache.scheduling.overcommit import FULL
from sglang_agentcache.scheduling.returns import AWAY_S
from sglang_agentcache.serving.hints import Hints
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.model import PathNode
from sglang_agentcache.trajectory.table import TrajectoryTable
from tests.support.door import Sent

POOL = 1_000
FIRST = int(FULL * POOL / 300)
"""Trajectories of 300 tokens that fit at first."""


@dataclass
class Machine:
    """A table, a door and a clock; `prefill` is a whole prefill step."""

    seconds: float = 0.0
    table: TrajectoryTable = field(default_factory=lambda: TrajectoryTable(None, 1_000, 600.0))

    def __post_init__(self) -> None:
        self.door = Door(self.table, POOL, lambda: self.seconds)
        self.sent: list[str] = []

    def send(self, rid: str, tokens: int, name: str | None = "", parent: str | None = None) -> Sent:
        """A request of trajectory ``name``; "": its own, None: nobody named it."""
        key = None if name is None else TrajectoryKey(Namespace(), name or rid)
        self.table.begin(key, rid, self.seconds, namespace=Namespace(), hints=Hints(parent_id=parent))
        req = Sent(rid, [0] * tokens)
        self.door.arrived(req)
        self.sent.append(rid)
        return req

    def step(self, *, idle: bool = False) -> set[str]:
        """The requests that wait at the door."""
        if idle:
            self.door.forget_lost()
        self.door.enter(idle=idle)
        return {rid for rid in self.sent if rid in self.door}

    def prefill(self, req: Sent, cached: int = 0) -> None:
        req.prefix_len, req.extend_end = cached, len(req.origin_input_ids)
        self.door.runs([req], decoding=0, idle=False)

    def finish(self, rid: str) -> None:
        self.table.end(rid, self.seconds)
        self.door.left(rid)

    def fill(self) -> None:
        """Let in what fits: nothing more of 300 tokens does."""
        for number in range(FIRST):
            req = self.send(f"first{number}", 300)
            assert self.step() == set()
            self.prefill(req)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_who_fits_passes_and_who_does_not_waits(machine):
    machine.fill()
    machine.send("late", 300)
    machine.send("later", 300)
    assert machine.step() == {"late", "later"}
    machine.finish("first0")
    machine.seconds += AWAY_S - 1
    assert machine.step() == {"late", "later"}
    # It has been idle for so long that it holds no place.
    machine.seconds += 1
    assert machine.step() == {"later"}
    assert machine.door.state()["let_in"] == {"room": FIRST + 1, "idle": 0, "patience": 0}
    assert machine.door.state()["longest_wait_s"] == AWAY_S


def test_a_completed_trajectory_makes_room_at_the_next_look(machine):
    machine.fill()
    machine.send("late", 300)
    assert machine.step() == {"late"}
    machine.finish("first0")
    machine.table.forget(machine.table.get(TrajectoryKey(Namespace(), "first0")))
    assert machine.step() == {"late"}
    machine.seconds += LOOK_S
    assert machine.step() == set()


def test_continuations_unnamed_requests_and_sub_agents_of_those_inside_pass(machine):
    machine.fill()
    machine.send("outside", 300)
    machine.send("child of outside", 300, parent="outside")
    machine.send("first0 again", 500, "first0")
    machine.send("nobody's", 500, None)
    machine.send("child", 500, parent="first1")
    assert machine.step() == {"outside", "child of outside"}


def test_parallel_requests_of_one_trajectory_enter_together(machine):
    machine.fill()
    machine.send("a", 300, "same")
    machine.send("b", 300, "same")
    assert machine.step() == {"a", "b"}
    machine.finish("first0")
    machine.seconds += AWAY_S
    assert machine.step() == set()
    assert machine.door.state()["let_in"]["room"] == FIRST + 1


def test_an_idle_machine_lets_one_in_even_if_it_exceeds_the_pool(machine):
    machine.send("giant", 10 * POOL)
    machine.send("next", 10)
    assert machine.step() == {"giant", "next"}
    # In the order of arrival, one at a time.
    assert machine.step(idle=True) == {"next"}
    assert machine.door.state()["let_in"]["idle"] == 1


def test_while_others_are_inside_it_must_have_been_idle_for_long(machine):
    machine.fill()
    machine.finish("first0")
    machine.finish("first1")
    machine.send("late", 300)
    assert machine.step(idle=True) == {"late"}
    machine.seconds += IDLE_S - 1
    assert machine.step(idle=True) == {"late"}
    # Something ran.
    assert machine.step() == {"late"}
    machine.seconds += 1
    assert machine.step(idle=True) == {"late"}
    machine.seconds += IDLE_S
    assert machine.step(idle=True) == set()
    assert machine.door.state()["let_in"]["idle"] == 1


def test_those_who_never_say_that_they_are_over_lose_their_place(machine):
    """One request each, and then nothing: the door learns that nobody comes back."""

    def at_once(name: str) -> set[str]:
        """Three, one after the other; returns those that wait."""
        for number in range(3):
            req = machine.send(f"{name}{number}", 300)
            if not machine.step():
                machine.prefill(req)
                machine.finish(req.rid)
        return machine.step()

    assert at_once("early") == {"early2"}
    machine.finish("early2")
    for minute in range(10):
        machine.seconds += AWAY_S
        machine.door.runs((), decoding=0, idle=True)
        assert machine.step() == set()
        machine.prefill(machine.send(f"one{minute}", 300))
        machine.finish(f"one{minute}")
    assert at_once("late") == set()


def test_a_return_is_learned_from_once(machine, monkeypatch):
    learned = []
    monkeypatch.setattr(machine.door._returns, "came", learned.append)
    machine.seconds = 100.0
    machine.prefill(machine.send("one", 300, "t"))
    machine.step()
    # Retracted, it comes again; a second request beside it is no return either.
    machine.door.arrived(Sent("one", [0] * 300))
    machine.send("beside", 300, "t")
    assert learned == []
    for rid in ("one", "beside"):
        machine.finish(rid)
    machine.seconds += 7
    machine.send("two", 400, "t")
    machine.door.arrived(Sent("two", [0] * 400))
    machine.send("three", 400, "t")
    assert learned == [7.0]


def test_patience_is_counted_in_useful_tokens(machine):
    machine.fill()
    machine.send("late", 300)
    machine.send("later", 300)
    useful = int(PATIENCE_POOLS * POOL)
    machine.door.runs((), decoding=useful - 1, idle=False)
    assert machine.step() == {"late", "later"}
    machine.door.runs((), decoding=1, idle=False)
    assert machine.step() == {"later"}
    machine.door.runs((), decoding=useful - 1, idle=False)
    assert machine.step() == {"later"}
    machine.door.runs((), decoding=1, idle=False)
    assert machine.step() == set()
    assert machine.door.state()["let_in"]["patience"] == 2


def test_those_that_come_together_share_one_look_at_who_is_inside(machine, monkeypatch):
    machine.door = Door(machine.table, 100 * POOL, lambda: machine.seconds)
    for number in range(50):
        req = machine.send(f"inside{number}", 300)
        assert machine.step() == set()
        machine.prefill(req)
    looked_at = []
    monkeypatch.setattr(
        machine.door,
        "_inside",
        lambda now, inside=machine.door._inside: (looked_at.append(one) or one for one in inside(now)),
    )
    for number in range(1_000):
        machine.send(f"new{number}", 300)
    waiting = machine.step()
    assert len(looked_at) == 50
    assert len(waiting) == 1_000 + 50 - int(FULL * 100 * POOL / 300), "and each finds those before it inside"


def test_who_leaves_at_the_door_leaves_nothing(machine):
    machine.fill()
    machine.send("gone", 300)
    machine.send("lost", 300)
    machine.step()
    machine.finish("gone")
    # Left by a way that nobody told the door of.
    machine.table.end("lost", machine.seconds)
    assert machine.step() == set()
    assert machine.door.waiting == 0
    assert machine.door.state()["let_in"]["room"] == FIRST


def test_what_is_prefilled_again_is_told_from_what_is_new(machine):
    req = machine.send("one", 300, "t")
    machine.step()
    machine.prefill(req)
    trajectory = machine.table.of_request("one")
    machine.table.extend(
        trajectory,
        "one",
        [PathNode(1, 310)],
        prompt=[0] * 300,
        history_tokens=310,
        tokens=array("q", [0] * 310),
        shared_with=lambda node: 0,
    )
    machine.finish("one")
    req = machine.send("two", 400, "t")
    assert machine.step() == set()
    # Of the 310 tokens of history 100 are there: 210 again, 90 for the first time.
    machine.prefill(req, cached=100)
    assert machine.door.state()["redone_tokens"] == 210
    assert machine.door.useful_tokens == 300 + 90


def test_the_flag_and_its_variable():
    environment: dict[str, str] = {}
    assert flags.admission(environment) == "off"
    assert flags.take(["--agentcache-admission", "auto"], environment) == []
    assert environment == {flags.ADMISSION: "auto"}
    with pytest.raises(ConfigError, match=r"--agentcache-admission .* off, auto; got 'on'"):
        flags.take(["--agentcache-admission", "on"], {})
