"""States, branches, lineage and bounds of the table, on hand-made paths instead of a tree."""

from __future__ import annotations

from array import array

import pytest

from sglang_agentcache.eviction import RoundRobin
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.table import (
    ANONYMOUS,
    PROBE_TOKENS,
    PathNode,
    State,
    Trajectory,
    TrajectoryTable,
)

SPACE = Namespace()
NODE_TOKENS = 100
"""Every node of the hand-made tree is this long."""


def key(name: str, space: Namespace = SPACE) -> TrajectoryKey:
    return TrajectoryKey(space, name)


class Tree:
    """A table, and a tree in which a path is the sequence of its node ids from the root."""

    def __init__(self, max_trajectories: int = 1000, forget_after_s: float = 60.0) -> None:
        self.table = TrajectoryTable(RoundRobin("off"), max_trajectories, forget_after_s)
        self.paths: dict[int, tuple[int, ...]] = {}
        self.count = 0

    def begin(self, name: str | None, now: float = 0.0) -> tuple[Trajectory, str]:
        self.count += 1
        rid = f"r{self.count}"
        return self.table.begin(None if name is None else key(name), rid, now, namespace=SPACE), rid

    def extend(
        self,
        trajectory: Trajectory,
        rid: str,
        *path: int,
        prompt: list[int] | None = None,
        rewrites: bool = True,
    ) -> None:
        for depth in range(1, len(path) + 1):
            self.paths[path[depth - 1]] = path[:depth]
        tokens = tokens_of(path)
        self.table.extend(
            trajectory,
            rid,
            [PathNode(node, NODE_TOKENS * depth) for depth, node in enumerate(path, 1)],
            prompt=tokens if prompt is None else prompt,
            history_tokens=len(tokens),
            tokens=array("q", tokens),
            shared_with=lambda node: NODE_TOKENS * len(set(self.paths[node]) & set(path)),
            rewrites=rewrites,
        )

    def turn(self, name: str | None, *path: int, now: float = 0.0) -> Trajectory:
        """A request that begins, is stored and ends."""
        trajectory, rid = self.begin(name, now)
        self.extend(trajectory, rid, *path)
        self.table.end(rid, now)
        return trajectory

    def evict(self, node: int, now: float = 0.0) -> None:
        path = self.paths[node]
        parent = path[-2] if len(path) > 1 else None
        self.table.evicted(node, parent, NODE_TOKENS * (len(path) - 1), now)

    @property
    def joined(self) -> list[str]:
        policy = self.table.policy
        assert isinstance(policy, RoundRobin)
        return [t.key.trajectory_id for tier in policy._rounds for t in tier.values()]  # type: ignore[attr-defined]


def tokens_of(path: tuple[int, ...]) -> list[int]:
    return [node * 1000 + offset for node in path for offset in range(NODE_TOKENS)]


@pytest.fixture
def tree() -> Tree:
    return Tree()


# ---- states ----


def test_active_from_the_queue_to_the_end_then_idle(tree: Tree) -> None:
    trajectory, rid = tree.begin("a")
    assert trajectory.state is State.ACTIVE and not tree.joined
    tree.extend(trajectory, rid, 1, 2)
    assert tree.table.end(rid, 5.0) is trajectory
    assert trajectory.state is State.IDLE and trajectory.idle_since == 5.0
    assert tree.joined == ["a"]
    assert tree.table.states() == {"idle": 1, "active": 0, "completed": 0}


def test_idle_only_when_the_last_of_its_requests_has_ended(tree: Tree) -> None:
    trajectory, first = tree.begin("a")
    _, second = tree.begin("a")
    tree.extend(trajectory, first, 1)
    assert tree.table.end(first, 1.0) is None and trajectory.state is State.ACTIVE
    assert tree.table.end(second, 2.0) is trajectory and tree.joined == ["a"]


def test_beginning_twice_and_ending_twice_change_nothing(tree: Tree) -> None:
    trajectory, rid = tree.begin("a")
    assert tree.table.begin(key("other"), rid, 0.0, namespace=SPACE) is trajectory
    assert len(tree.table) == 1
    tree.table.end(rid, 0.0)
    assert tree.table.end(rid, 0.0) is None


def test_a_return_leaves_the_round(tree: Tree) -> None:
    tree.turn("a", 1)
    tree.begin("a")
    assert not tree.joined


def test_the_same_id_in_two_namespaces_is_two(tree: Tree) -> None:
    one = tree.turn("a", 1)
    other = tree.table.begin(key("a", Namespace("lora", None)), "x", 0.0, namespace=Namespace("lora", None))
    assert other is not one and len(tree.table) == 2
    joined = Namespace("lo", "ra")
    assert tree.table.get(key("a", joined)) is None


def test_completed_while_idle_can_be_released_now(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    assert tree.table.close(trajectory, 0.0)
    assert trajectory.state is State.COMPLETED and not tree.joined and tree.table.get(key("a")) is None
    assert tree.table.forget(trajectory) == [2]
    assert not tree.table.is_tail(2)


def test_completed_while_active_waits_and_a_late_request_is_a_new_generation(tree: Tree) -> None:
    old, rid = tree.begin("a")
    assert not tree.table.close(old, 0.0)
    new, late = tree.begin("a")
    assert new is not old and tree.table.get(key("a")) is new
    tree.extend(old, rid, 1)
    assert tree.table.end(rid, 0.0) is old and old.state is State.COMPLETED
    assert tree.table.forget(old) == [1]
    assert tree.table.get(key("a")) is new and tree.table.of_request(late) is new


def test_flush_forgets_the_idle_and_keeps_the_active(tree: Tree) -> None:
    tree.turn("idle", 1)
    active = tree.turn("active", 2)
    tree.begin("active")
    tree.table.clear()
    assert tree.table.get(key("idle")) is None and not tree.joined and not tree.table.is_tail(1)
    assert tree.table.get(key("active")) is active and not active.branches


# ---- branches ----


def test_an_extension_moves_the_tail(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    tree.turn("a", 1, 2, 3)
    assert [branch.tail for branch in trajectory.branches] == [3]
    assert trajectory.resident_tokens == 300 and trajectory.missing_tokens == 0
    assert not tree.table.is_tail(2)


def test_a_rewritten_history_supersedes_the_old_branch(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    tree.turn("a", 1, 3)
    assert [branch.tail for branch in trajectory.branches] == [3]
    assert tree.table.superseded == {2: trajectory}
    assert tree.table.forget(trajectory) == [3, 2]
    assert not tree.table.superseded


def test_one_that_shares_nothing_is_a_branch_of_its_own(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    tree.turn("a", 7, 8)
    assert [branch.tail for branch in trajectory.branches] == [2, 8] and not tree.table.superseded


def test_parallel_requests_are_branches_not_rewrites(tree: Tree) -> None:
    trajectory, first = tree.begin("a")
    _, second = tree.begin("a")
    tree.extend(trajectory, first, 1, 2)
    tree.extend(trajectory, second, 1, 3)
    assert [branch.tail for branch in trajectory.branches] == [2, 3] and not tree.table.superseded


def test_an_aborted_request_supersedes_nothing(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    _, rid = tree.begin("a")
    tree.extend(trajectory, rid, 1, 3, rewrites=False)
    assert [branch.tail for branch in trajectory.branches] == [2] and not tree.table.superseded


def test_a_superseded_branch_that_comes_back_marks_its_trajectory_as_interleaving(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    tree.turn("a", 1, 3)
    tree.turn("a", 1, 2, 4)
    assert trajectory.interleaves and not tree.table.superseded
    assert [branch.tail for branch in trajectory.branches] == [3, 4]
    tree.turn("a", 1, 5)
    assert not tree.table.superseded, "it goes back and forth; nothing of it is dead"


def test_a_superseded_leaf_that_is_evicted_passes_it_on_to_its_parent(tree: Tree) -> None:
    tree.turn("a", 1, 2, 3)
    tree.turn("a", 1, 4)
    tree.turn("b", 9)
    tree.turn("b", 9, 8)
    tree.evict(3)
    assert list(tree.table.superseded) == [2]
    tree.evict(2)
    assert list(tree.table.superseded) == [1], "the cache finds out that it is shared"


def test_a_superseded_leaf_over_somebodys_tail_ends_there(tree: Tree) -> None:
    tree.turn("parent", 1, 2)
    tree.turn("a", 1, 2, 3)
    tree.turn("a", 1, 4)
    tree.evict(3)
    assert not tree.table.superseded


# ---- eviction seen by the table ----


def test_an_evicted_leaf_moves_the_tail_and_the_missing_tokens_count_from_the_high_water(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2, 3)
    tree.evict(3)
    assert trajectory.branches[0].tail == 2
    assert (trajectory.resident_tokens, trajectory.missing_tokens) == (200, 100)
    assert len(trajectory.branches[0].tokens) == 201, "one more than is resident, for bigram keys"


def test_trimmed_to_a_new_node(tree: Tree) -> None:
    trajectory = tree.turn("a", 1, 2)
    tree.table.trimmed(trajectory.branches[0], 77, 150)
    assert tree.table.is_tail(77) and not tree.table.is_tail(2)
    assert (trajectory.resident_tokens, trajectory.missing_tokens) == (150, 50)


def test_private_and_spared(tree: Tree) -> None:
    one, other = tree.turn("a", 1, 2), tree.turn("b", 1, 3)
    assert tree.table.private_to(2, one) and not tree.table.private_to(2, other)
    tree.evict(2)
    tree.evict(3)
    assert not tree.table.private_to(1, one)
    assert not tree.table.spared(1)
    tree.begin("b")
    assert tree.table.spared(1)


def test_parked_rejoins_when_the_other_tail_leaves_its_node(tree: Tree) -> None:
    one = tree.turn("a", 1)
    tree.turn("b", 1)
    tree.table.park(one, 0.0)
    assert tree.joined == ["b"]
    tree.turn("b", 1, 2)
    assert tree.joined == ["a", "b"] and not one.parked


def test_parked_rejoins_when_its_last_child_goes(tree: Tree) -> None:
    one = tree.turn("a", 1)
    tree.table.park(one, 0.0)
    tree.paths[5] = (1, 5)
    tree.evict(5)
    assert tree.joined == ["a"]


def test_parked_rejoins_when_unlocked(tree: Tree) -> None:
    one = tree.turn("a", 1)
    tree.table.park(one, 0.0)
    tree.table.unpark(1)
    assert tree.joined == ["a"]


def test_unparking_leaves_others_alone(tree: Tree) -> None:
    tree.turn("a", 1)
    active = tree.turn("b", 2)
    tree.begin("b")
    tree.table.unpark(1)
    tree.table.unpark(2)
    tree.table.unpark(99)
    assert tree.joined == ["a"] and active.state is State.ACTIVE


# ---- lineage ----


def match(tree: Tree, node: int, matched: int, tokens: list[int]) -> Trajectory | None:
    return tree.table.lineage(node, matched, array("q", tokens))


def test_an_extension_of_the_one_tail_is_its_trajectory(tree: Tree) -> None:
    trajectory = tree.turn(None, 1, 2)
    assert trajectory.key.trajectory_id.startswith(ANONYMOUS)
    assert match(tree, 2, 200, [*tokens_of((1, 2)), 5]) is trajectory


def test_the_prompt_without_the_output_is_too(tree: Tree) -> None:
    """Reasoning was left out of the history: it follows the prompt, not the tail."""
    trajectory, rid = tree.begin(None)
    tree.extend(trajectory, rid, 1, 2, 3, prompt=tokens_of((1, 2)))
    tree.table.end(rid, 0.0)
    assert match(tree, 2, 200, [*tokens_of((1, 2)), 5, 6]) is trajectory


@pytest.mark.parametrize(
    ("node", "matched", "extra"), [(1, 100, 5), (2, 150, 5), (2, 200, 0)], ids=("above", "part", "no longer")
)
def test_less_than_the_prompt_is_not(tree: Tree, node: int, matched: int, extra: int) -> None:
    tree.turn(None, 1, 2)
    assert match(tree, node, matched, [*tokens_of((1, 2)), *range(extra)]) is None


def test_two_at_one_tail_is_nobody(tree: Tree) -> None:
    tree.turn("a", 1, 2)
    tree.turn("b", 1, 2)
    assert match(tree, 2, 200, [*tokens_of((1, 2)), 5]) is None


def test_an_active_one_is_not_continued(tree: Tree) -> None:
    trajectory = tree.turn("a", 1)
    tree.begin("a")
    assert trajectory.state is State.ACTIVE
    assert match(tree, 1, 100, [*tokens_of((1,)), 5]) is None


def test_of_a_trimmed_history_the_end_of_the_prompt_decides(tree: Tree) -> None:
    trajectory = tree.turn(None, 1, 2)
    tree.evict(2)
    prompt = tokens_of((1, 2))
    assert match(tree, 1, 100, [*prompt, 5]) is trajectory
    other = [*prompt[:-PROBE_TOKENS], *range(PROBE_TOKENS), 5]
    assert match(tree, 1, 100, other) is None


def test_a_prompt_of_which_only_the_beginning_was_stored_needs_all_of_it(tree: Tree) -> None:
    trajectory, rid = tree.begin(None)
    prompt = tokens_of((1, 2))
    tree.extend(trajectory, rid, 1, prompt=prompt, rewrites=False)
    tree.table.end(rid, 0.0)
    assert match(tree, 1, 100, [*prompt, 5]) is trajectory
    assert match(tree, 1, 100, [*tokens_of((1, 3)), 5]) is None


# ---- bounds ----


def test_an_anonymous_one_is_forgotten_with_its_last_token(tree: Tree) -> None:
    tree.turn(None, 1)
    tree.evict(1)
    assert len(tree.table) == 0 and not tree.joined


def test_a_named_one_is_forgotten_after_its_quiet_time(tree: Tree) -> None:
    tree.turn("a", 1)
    tree.evict(1, now=10.0)
    assert tree.table.get(key("a")) is not None and not tree.joined
    tree.turn("b", 2, now=59.0)
    assert tree.table.get(key("a")) is not None
    tree.turn("c", 3, now=61.0)
    assert tree.table.get(key("a")) is None


def test_one_trimmed_to_what_others_use_is_forgotten_after_its_quiet_time(tree: Tree) -> None:
    for number in range(5):
        trajectory = tree.turn(f"t{number}", 1, 10 + number)
        tree.evict(10 + number)
        tree.table.park(trajectory, 0.0)
    tree.turn("late", 9, now=61.0)
    assert [tree.table.get(key(f"t{number}")) for number in range(4)] == [None] * 4
    assert tree.joined == ["t4", "late"], "the last one has it for itself now"


def test_a_whole_one_under_its_children_is_kept_however_long(tree: Tree) -> None:
    parent = tree.turn("parent", 1)
    tree.turn("child", 1, 2)
    tree.table.park(parent, 0.0)
    tree.turn("late", 9, now=1e6)
    assert tree.table.get(key("parent")) is parent and tree.table.is_tail(1)


def test_the_table_never_holds_more_than_its_maximum(tree: Tree) -> None:
    tree = Tree(max_trajectories=10)
    kept, _ = tree.begin("active")
    for number in range(50):
        tree.turn(f"t{number}", 100 + number)
        assert len(tree.table) <= 10
    assert tree.table.get(key("active")) is kept
    assert tree.table.get(key("t49")) is not None and tree.table.get(key("t39")) is None
    assert not tree.table.is_tail(100)


def test_nothing_grows_over_100_000_finished_trajectories(tree: Tree) -> None:
    for number in range(100_000):
        node = 2 + number
        trajectory = tree.turn(None if number % 2 else f"t{number}", 1, node, now=float(number))
        if number % 3 == 0:
            assert tree.table.close(trajectory, 0.0)
            tree.table.forget(trajectory)
        else:
            tree.evict(node, now=float(number))
            tree.table.park(trajectory, float(number))
        del tree.paths[node]
    sizes = {name: len(value) for name, value in vars(tree.table).items() if hasattr(value, "__len__")}
    assert max(sizes.values()) < 200, sizes
    assert len(tree.table._tails.get(1, ())) < 200


def test_a_session_is_found_in_every_namespace_but_not_by_another_kind_of_id() -> None:
    table = Tree().table
    other = Namespace("tenant", None)
    session = table.begin(key("s"), "r1", 0.0, namespace=SPACE, source="session_id")
    elsewhere = table.begin(key("s", other), "r2", 0.0, namespace=other, source="session_id")
    table.begin(key("s", Namespace("x")), "r3", 0.0, namespace=Namespace("x"), source="hint")
    table.begin(key("t"), "r4", 0.0, namespace=SPACE, source="session_id")
    assert table.of_session("s") == [session, elsewhere]
