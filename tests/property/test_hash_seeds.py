"""The same history gives the same decisions in processes that hash strings differently, as ranks do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_agentcache.eviction import POLICIES


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_decisions_do_not_depend_on_the_hash_seed(policy: str, repository: Path) -> None:
    found = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks_digest", policy],
            cwd=repository,
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "4242")
    ]
    digests = {process.communicate()[0].strip() for process in found}
    assert not any(process.returncode for process in found)
    assert len(digests) == 1 and len(digests.pop()) == 64
