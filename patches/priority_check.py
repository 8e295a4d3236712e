"""`--enable-priority-scheduling` works with our schedule policies.

Target: ``validation_hook.check_server_args``, SGLang 0.5.23. No extension point serves: the policies that
priority scheduling allows are written out in an assertion.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch
from sglang_agentcache.scheduling.order import POLICY_NAMES


def check(original: Any, server_args: Any) -> None:
    """Let SGLang check everything else as if fcfs were asked for, which orders within a priority as ours do."""
    import msgspec

    asked = server_args.schedule_policy
    if asked not in POLICY_NAMES or not server_args.enable_priority_scheduling:
        return original(server_args)
    # The record's own setter refuses: what the user asked for must not change. It does not, in the end.
    msgspec.Struct.__setattr__(server_args, "schedule_policy", "fcfs")
    try:
        return original(server_args)
    finally:
        msgspec.Struct.__setattr__(server_args, "schedule_policy", asked)


PATCH = Patch(
    target="sglang.srt.arg_groups.validation_hook.check_server_args",
    kind="AROUND",
    hook=check,
    versions=("0.5.23",),
    fingerprint="d9c5f90ec609af3674a05ed2739471df87af11348483b8707e84c231d68968c1",
)
