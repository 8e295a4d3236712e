"""All ranks evict the same, whatever is their own: clocks, hash seeds, delays. And they would not by their own clocks.

AGENTCACHE_RANK_EVICTIONS=20000 runs it at length, with every policy, and with pipeline parallelism.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from sglang_agentcache.predictor.store import DEFAULT_DIR, load_default, save
from sglang_agentcache.predictor.tool_calls import ToolCall
from tests.support.e2e_servers import START_S, two_ranks
from tests.support.ranks import TOOLS, Agents, diverged, unlike_ranks, wait_until

pytestmark = pytest.mark.slow

ASKED = os.environ.get("AGENTCACHE_RANK_EVICTIONS")
EVICTIONS = int(ASKED or 2_000)
ALWAYS = (("convex", "tp"),)
AT_LENGTH = (("rr", "tp"), ("predictive", "tp"), ("rr", "pp"), ("convex", "pp"))
EVICTIONS_PER_S = 20
"""Of a machine that is very busy."""
MINUTE_S = 60.0


@pytest.fixture
def artefacts(tmp_path: Path) -> list[Path]:
    """The shipped predictor, and one that has seen the tools take other times."""
    predictor = load_default()
    for number in range(400):
        call = ToolCall(*TOOLS[number % len(TOOLS)])
        predictor.observe(predictor.prepare(call), 0.05 * (1 + number % len(TOOLS)))
    save(predictor, tmp_path / "other")
    return [tmp_path / "other", DEFAULT_DIR]


@pytest.mark.timeout(START_S + 300 + 2 * EVICTIONS / EVICTIONS_PER_S)
@pytest.mark.parametrize(("policy", "parallel"), (*ALWAYS, *(AT_LENGTH if ASKED else ())))
def test_ranks_with_nothing_in_common_evict_the_same(
    policy: str, parallel: str, model: Path, artefacts: list[Path], tmp_path: Path
) -> None:
    learns = policy != "rr"
    with unlike_ranks(two_ranks(policy, parallel), model, tmp_path) as (server, records):
        with Agents(server.client, artefacts if learns else (), seed=1) as agents:
            wait_until(lambda: records.count("cut") >= EVICTIONS, agents, 60 + EVICTIONS / EVICTIONS_PER_S)
        assert agents.failure is None
        server.assert_clean()

        assert records.settled().first_difference() is None
        assert records.count("cut") >= EVICTIONS
        for kind in ("cut", "leaf", "complete", "enter", *(("return", "reload") if learns else ())):
            assert records.count(kind) > 0, kind
        first, second = records.own()
        assert first["hash_seed"] != second["hash_seed"] and first["hash"] != second["hash"]
        for ahead in records.own_clocks():
            steps = [later - earlier for earlier, later in itertools.pairwise(ahead)]
            assert max(steps) > MINUTE_S and min(steps) < -MINUTE_S, "this rank's clock does not jump"

        if policy == "convex":
            records.let_own_clocks_decide()
            with Agents(server.client, artefacts, seed=2) as agents:
                found = diverged(server, records, agents, 60 + 500 / EVICTIONS_PER_S)
            assert found, "ranks that order by their own clocks decide the same here"
