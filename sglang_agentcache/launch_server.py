"""`python -m sglang_agentcache.launch_server`: SGLang's own server and flags, with this package's policies."""

from __future__ import annotations

import math
import os
import sys

from .config import ConfigError
from .flags import parser, take


def _value(argv: list[str], flag: str) -> str | None:
    """The value given to a flag, in either spelling."""
    for position, arg in enumerate(argv):
        if arg == flag and position + 1 < len(argv):
            return argv[position + 1]
        if arg.startswith(flag + "="):
            return arg.partition("=")[2]
    return None


def _size(argv: list[str], parallel: str) -> int:
    """Ranks of one kind of parallelism; 1 for what SGLang's own parser will refuse."""
    letter = parallel[0]
    flags = (f"--{parallel}-parallel-size", f"--{letter}p-size", f"--{letter}p")
    given = next(filter(None, (_value(argv, flag) for flag in flags)), "1")
    return int(given) if given.isdecimal() else 1


def prepare_cpu(argv: list[str]) -> list[str]:
    """What a run with `--device cpu` needs beyond its flags; whatever the user set stays as it is.

    Returns:
        the arguments, with `--sleep-on-idle` and, with HiCache, the I/O back end that works without a GPU.
    """
    if _value(argv, "--device") != "cpu":
        return argv
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # With DP attention the data-parallel ranks are among the tensor-parallel ones.
    own_ranks = ("tensor", "pipeline") if "--enable-dp-attention" in argv else ("tensor", "pipeline", "data")
    ranks = math.prod(_size(argv, parallel) for parallel in own_ranks)
    if ranks > 1:
        cores = os.cpu_count() or 1
        os.environ.setdefault(
            "SGLANG_CPU_OMP_THREADS_BIND", "|".join(str(rank % cores) for rank in range(ranks))
        )
    extra = [] if "--sleep-on-idle" in argv else ["--sleep-on-idle"]
    if "--enable-hierarchical-cache" in argv or "--enable-hicache" in argv:
        for flag, value in (("--hicache-io-backend", "direct"), ("--hicache-mem-layout", "layer_first")):
            if _value(argv, flag) is None:
                extra += [flag, value]
    return [*argv, *extra]


def main(argv: list[str]) -> None:
    """Start the server; returns when it has stopped.

    Raises:
        SystemExit: with one sentence, if this package cannot be put in force.
    """
    try:
        argv = prepare_cpu(take(argv))
    except ConfigError as error:
        raise SystemExit(f"agentcache: {error}.") from None
    if {"-h", "--help"} & set(argv):
        parser().print_help()
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed and "agentcache" not in {name.strip() for name in allowed.split(",")}:
        raise SystemExit(
            f"agentcache: SGLANG_PLUGINS={allowed} leaves this package out; add agentcache to it."
        )

    from importlib.metadata import version

    from .support import version_problem

    problem = version_problem(version("sglang"))
    if problem is not None:
        raise SystemExit(f"agentcache: {problem}")

    # Imported late: both read the environment set above.
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from .plugin import missing_hooks

    load_plugins()
    missing = missing_hooks()
    if missing:
        raise SystemExit(
            f"agentcache: could not put itself in force: {', '.join(missing)} not patched (is the package "
            "installed with its entry point? see the log above)."
        )
    server_args = prepare_server_args(argv)
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
