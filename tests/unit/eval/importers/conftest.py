"""Logs are imported through the command and read back with the trace reader."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.trace import Trajectory, read_traces


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., list[Trajectory]]:
    """``imported(format, path, *flags)``: the trajectories of a successful import."""

    def run(form: str, path: Path, *flags: str) -> list[Trajectory]:
        out = tmp_path / "out.jsonl"
        assert main(["import", "--format", form, str(path), "-o", str(out), *flags]) == 0
        return list(read_traces(out))

    return run
