"""The order of scores, against a plain dictionary."""

from __future__ import annotations

import random

import numpy as np

from sglang_agentcache.eviction.ranking import Ranking


def test_the_smallest_score_is_first_and_ties_go_to_the_smaller_serial() -> None:
    rng = random.Random(0)
    ranking, known = Ranking(), dict[int, float]()
    assert ranking.first() is None
    for _ in range(3000):
        serials = rng.sample(range(1_000_000, 1_000_200), rng.choice((0, 1, 1, 5, 40)))
        if rng.random() < 0.6:
            scores = [float(rng.randint(-3, 3)) for _ in serials]
            ranking.put(serials, np.array(scores))
            known.update(zip(serials, scores, strict=True))
        else:
            for serial in serials:
                ranking.drop(serial)
                known.pop(serial, None)
        expected = min(known, key=lambda serial: (known[serial], serial), default=None)
        assert ranking.first() == expected
        assert len(ranking) == len(known)


def test_all_that_were_put_come_out_in_order() -> None:
    ranking = Ranking()
    ranking.put(range(500), np.arange(500.0, 0.0, -1.0))
    order = []
    while (first := ranking.first()) is not None:
        order.append(first)
        ranking.drop(first)
    assert order == list(range(499, -1, -1))
