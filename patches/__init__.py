"""Import-time patches of SGLang, packaged as ``sglang_agentcache.patches``.

The rule: one small module per SGLang symbol touched, and none where SGLang has an extension point. Each says

* the target (the dotted name of the symbol) and the SGLang versions it is for,
* why no extension point serves,
* a fingerprint of the source it was written against: a changed upstream is refused, never patched blindly.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from .fingerprint import Patch, verify

SCHEDULER_PATCHES = ("scheduler_class", "default_cache_factory")
"""For the processes that run a scheduler."""
LAUNCHER_PATCHES = (
    "server_args_check",
    "schedule_policy_choices",
    "priority_check",
    "http_launch_server",
    "http_generate",
    "tokenizer_generate_request",
    "openai_handle_request",
    "openai_create_responses",
    "anthropic_handle_messages",
)
"""For the process that the user started: it checks the arguments and serves HTTP."""


def runs_scheduler() -> bool:
    """Whether SGLang's scheduler is at home in this process; it is imported before plugins are loaded."""
    return "sglang.srt.managers.scheduler" in sys.modules


def load(names: Iterable[str]) -> list[Patch]:
    """Import the patches of these modules, less those whose target this installation does not have."""
    patches = [importlib.import_module(f"{__name__}.{name}").PATCH for name in names]
    return [patch for patch in patches if patch.applies()]


def register(patch: Patch) -> None:
    """Hand a hook to SGLang's registry, which applies it when all plugins have run.

    Raises:
        PatchRefused: the installed SGLang is not the one the patch was written against.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    verify(patch)
    HookRegistry.register(patch.target, patch.hook, HookType[patch.kind])
