"""`--schedule-policy` takes our policies' names.

Target: ``ServerArgs.add_cli_args``, SGLang 0.5.23. Eviction policies have ``add_radix_eviction_policy_choices``;
no extension point serves for schedule policies, whose choices are written out in the field's declaration.
"""

from argparse import ArgumentParser

from sglang_agentcache.patches.fingerprint import Patch
from sglang_agentcache.scheduling.order import POLICY_NAMES


def add_choices(_result: None, parser: ArgumentParser) -> None:
    """Append our names to the choices of the flag, which `--help` lists too."""
    for action in parser._actions:
        if action.dest == "schedule_policy" and action.choices is not None:
            action.choices = [*action.choices, *POLICY_NAMES]


PATCH = Patch(
    target="sglang.srt.server_args.ServerArgs.add_cli_args",
    kind="AFTER",
    hook=add_choices,
    versions=("0.5.23",),
    fingerprint="8d5f9b207365f5bad13d4623477aa017145dc67a98499441daf0eb84412c5a9e",
)
