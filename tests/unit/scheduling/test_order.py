"""The order alone: what it keeps while a queue changes, and who is due."""

import math
import random

import pytest

from sglang_agentcache.scheduling.order import DEFERRED, DUE, WAITS, Key, Order, key


class Item:
    """Equal to no other, as a request."""


def filled(works: list[int], patience: float = 2.0) -> tuple[Order[Item], list[Item]]:
    order: Order[Item] = Order()
    items = [Item() for _ in works]
    for number, (item, work) in enumerate(zip(items, works, strict=True)):
        order.add(item, key(0, 0, work, number, patience))
    return order, items


def test_fewer_new_tokens_first_ties_by_arrival():
    order, items = filled([30, 10, 20, 10])
    assert order.items == [items[1], items[3], items[2], items[0]]


def test_a_head_start_of_patience_times_the_difference_of_work():
    early_long, late_short = key(0, 0, 100, 1, 2.0), key(0, 159, 20, 2, 2.0)
    assert late_short < early_long
    assert key(0, 161, 20, 2, 2.0) > early_long


def test_infinite_patience_is_greedy_and_none_is_fcfs():
    assert key(0, 10**9, 19, 2, math.inf) < key(0, 0, 20, 1, math.inf)
    assert key(0, 5, 10**6, 1, 0.0) < key(0, 6, 1, 2, 0.0)
    assert key(0, 5, 10**6, 1, 0.0) < key(0, 5, 1, 2, 0.0)


@pytest.mark.parametrize("leaving", [[], [0], [0, 1, 2], [1, 3], [4], [5], [0, 5], list(range(6))])
@pytest.mark.parametrize("arriving", [0, 2])
def test_what_left_is_dropped_and_what_came_is_returned(leaving, arriving):
    order, items = filled([1, 2, 3, 4, 5, 6])
    new = [Item() for _ in range(arriving)]
    stayed = [item for number, item in enumerate(items) if number not in leaving]
    assert order.follow([*stayed, *new]) == new
    assert order.items == stayed
    assert [at.number for at in order.keys] == [number for number in range(6) if number not in leaving]


def test_a_queue_that_someone_reordered_counts_as_new_from_there():
    order, items = filled([1, 2, 3, 4])
    stranger = Item()
    assert order.follow([stranger, *items]) == [stranger, *items]
    assert (order.items, order.keys) == ([], [])
    order, items = filled([1, 2, 3, 4])
    shuffled = [items[0], items[2], items[1], items[3]]
    assert order.follow(shuffled) == shuffled[3:] or set(order.items) | set(order.follow(shuffled)) == set(
        items
    )


def test_following_a_long_queue_at_random():
    draw = random.Random(0)
    order: Order[Item] = Order()
    queue: list[Item] = []
    for number in range(300):
        queue = [item for item in queue if draw.random() < 0.9]
        queue += [Item() for _ in range(draw.randrange(20))]
        for item in order.follow(queue):
            order.add(item, key(0, number, draw.randrange(100), draw.randrange(10**9), 3.0))
        assert set(order.items) == set(queue)
        assert order.keys == sorted(order.keys)
        queue = list(order.items)


def test_due_ones_go_first_by_arrival_within_their_priority():
    order: Order[str] = Order()
    for name, priority, arrival, work, number in [
        ("long", 0, 0, 50, 1),
        ("short", 0, 10, 5, 2),
        ("late", 0, 90, 20, 3),
        ("urgent", -1, 80, 60, 4),
        ("urgent, due", -1, 60, 10, 5),
        ("nobody", 7, 0, 1, 6),
    ]:
        order.add(name, key(priority, arrival, work, number, 2.0))
    due = order.mark_due(100)
    # due at: long 100, short 20, late 130, urgent 200, "urgent, due" 80, nobody 2
    assert [name for name, _ in due] == ["urgent, due", "short", "long", "nobody"]
    assert order.items == ["urgent, due", "urgent", "long", "short", "late", "nobody"]
    assert order.keys == sorted(order.keys)
    assert [at.group for at in order.keys] == [DUE, WAITS, DUE, DUE, WAITS, DUE]
    assert order.mark_due(100) == []
    assert [name for name, _ in order.mark_due(130)] == ["late"]
    assert order.items[2:5] == ["long", "short", "late"]


def test_find_needs_item_and_key():
    order, items = filled([1, 2])
    at = order.keys[1]
    assert order.find(items[1], at) == 1
    assert order.find(items[0], at) is None
    assert order.find(items[1], at._replace(rank=99.0)) is None
    assert order.take(1) is items[1]
    assert order.find(items[1], at) is None


def test_a_deferred_one_is_last_of_its_priority_only():
    assert Key(0, WAITS, 1e9, 1) < Key(0, DEFERRED, 0.0, 2) < Key(1, DUE, 0.0, 3)
