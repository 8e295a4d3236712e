"""The demo with prefill and decode servers behind SGLang's router: the policies act on the prefill side.

Same trajectories, table and files as `python -m eval demo`; the pool of every server is of the planned size, and
the prefill servers' caches are the ones that count. OUT/POLICY/ holds a log per process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eval import demo, pd
from eval.pd import Cluster, Role
from eval.policies import OURS, Policy

POLICIES = ["lru", "rr", "predictive", "convex"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    demo.add_arguments(parser)
    parser.set_defaults(out=Path("out/pd-demo"), policies=POLICIES)
    add = parser.add_argument_group("servers").add_argument
    add("--prefills", type=int, default=1, help="prefill servers (%(default)s)")
    add("--decodes", type=int, default=3, help="decode servers (%(default)s)")
    add("--transfer", choices=list(pd.TRANSFERS), default="nixl", help="what moves the KV (%(default)s)")
    add("--routing", default="cache_aware", help="the router's policy (%(default)s)")


class PdDemo(demo.Demo):
    """Runs each policy on the prefill side of a cluster."""

    router = True

    def serving(self, policy: Policy, folder: Path) -> Cluster:
        args, environment = self._args, self.environment(policy)
        return Cluster(
            folder,
            Role(policy.module, [*self.arguments(), *policy.command(self._plan.chunk_tokens)], environment),
            # Without a radix cache of its own: the policy would have nothing to decide there.
            Role(policy.module, self.arguments(), environment),
            prefills=args.prefills,
            decodes=args.decodes,
            transfer=args.transfer,
            routing=args.routing,
            channel="prefills" if policy.module == OURS and not policy.blind else "",
            port=args.port,
        )


def main(args: argparse.Namespace) -> int:
    problem = pd.missing(args.transfer)
    if problem is None and min(args.prefills, args.decodes) < 1:
        problem = "--prefills and --decodes: at least 1"
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return demo.main(args, PdDemo)
