"""The entry point `sglang.srt.plugins: agentcache`, called by SGLang in each of its processes.

`load_plugins()` logs and swallows what a plugin raises. So nothing here is trusted to have worked: the
launcher asks `missing_hooks`, the cache factory looks for the scheduler, and a policy name that was not
registered is refused by SGLang's own argument parser.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from importlib.metadata import version

from .config import BACKEND
from .eviction import POLICIES
from .scheduling.order import POLICY_NAMES
from .support import version_problem

logger = logging.getLogger(__name__)


def activate() -> None:
    """Register policy names, the cache backend and the hooks. Idempotent within a process."""
    problem = version_problem(version("sglang"))
    if problem is not None:
        if {BACKEND, *POLICIES, *POLICY_NAMES} & set(sys.argv):
            raise SystemExit(f"agentcache: {problem}")
        logger.warning("agentcache: inactive: %s", problem)
        return

    from sglang.srt.arg_groups.choices import (
        RADIX_EVICTION_POLICY_CHOICES,
        add_radix_eviction_policy_choices,
    )

    add_radix_eviction_policy_choices(sorted(POLICIES.keys() - set(RADIX_EVICTION_POLICY_CHOICES)))

    import sglang_agentcache.patches as patches

    launcher = multiprocessing.parent_process() is None
    runs_scheduler = patches.runs_scheduler()
    if runs_scheduler:
        _register_cache_backend()
    for patch in patches.load(
        (
            *(patches.LAUNCHER_PATCHES if launcher else ()),
            *(patches.SCHEDULER_PATCHES if runs_scheduler else ()),
        )
    ):
        _targets.append(patch.target)
        patches.register(patch)
    global _complete
    _complete = True


_targets: list[str] = []
_complete = False


def missing_hooks() -> list[str]:
    """What `activate` set out to patch in this process and SGLang's hook registry did not; [] if all is well."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [target for target in _targets if target not in HookRegistry._patched]
    return missing or ([] if _complete else ["the plugin's entry point"])


def _register_cache_backend() -> None:
    """Make `--radix-cache-backend agentcache` known, through SGLang's extension point."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    from sglang_agentcache.cache.factory import create_agent_cache

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, create_agent_cache)
