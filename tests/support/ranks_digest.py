"""`python -m tests.support.ranks_digest POLICY`: prints what a table and a policy decide over a fixed random history.

For comparing processes whose hash seeds differ.
"""

from __future__ import annotations

import hashlib
import random
import sys
from array import array

from sglang_agentcache.eviction import POLICIES
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.serving.hints import Hints
from sglang_agentcache.trajectory.identity import Namespace, TrajectoryKey
from sglang_agentcache.trajectory.model import PathNode, Trajectory
from sglang_agentcache.trajectory.table import TrajectoryTable

STEPS = 1_000
TOOLS = ("bash", "read_file", "ask", "search")


def digest(policy_name: str) -> str:
    policy = POLICIES[policy_name]()
    policy.start()
    table = TrajectoryTable(policy, max_trajectories=60, forget_after_s=300.0)
    rng = random.Random(policy_name)
    decisions = hashlib.sha256()
    now = 0.0
    for step in range(1, STEPS):
        now += rng.choice((0.0, 0.1, 5.0))
        namespace = Namespace(rng.choice((None, "a")), None)
        key = TrajectoryKey(namespace, f"agent-{rng.randrange(80)}")
        calls = tuple(ToolCall(rng.choice(TOOLS), {"n": rng.randrange(3)}) for _ in range(rng.randrange(3)))
        trajectory = table.begin(key, f"r{step}", now, namespace=namespace, hints=Hints(tool_calls=calls))
        table.extend(
            trajectory,
            f"r{step}",
            [PathNode(step, 2_000)],
            prompt=range(1_900),
            history_tokens=2_000,
            tokens=array("q", range(2_000)),
            shared_with=lambda node: 0,
        )
        table.end(f"r{step}", now)
        policy.begin_eviction(now)
        for _ in range(rng.randrange(3)):
            victim = policy.victim(now)
            if not isinstance(victim, Trajectory):
                break
            decisions.update(repr((victim.key, now)).encode())
            policy.visited(victim, now)
            tail = victim.branches[-1].tail
            if rng.random() < 0.5 and tail is not None:
                table.evicted(tail, None, 0, now)
        policy.evicted(1_024, 65_536, now)
        if rng.random() < 0.05:
            decisions.update(repr(table.forget(trajectory)).encode())
    return decisions.hexdigest()


if __name__ == "__main__":
    print(digest(sys.argv[1]))
