"""No log record, however odd, may end an import with anything but a trace or one clear error."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.__main__ import main
from eval.trace import read_traces
from tests.unit.eval.importers import logs

ODD = st.sampled_from([None, True, -1, 0, 3.5, 10**30, "", "text", [], [1], [{}], {}, {"a": [{"b": 1}]}])
SAMPLES: dict[str, tuple[Callable[[], Any], str]] = {
    "claude-code": (logs.claude_session, "s.jsonl"),
    "codex": (logs.codex_rollout, "rollout-1.jsonl"),
    "tau2": (logs.tau2_results, "r.json"),
    "mini-swe-agent": (logs.mini_v2, "i.traj.json"),
    "swe-agent": (lambda: logs.swe_agent_trajectory(queries=True), "i.traj"),
    "openhands": (lambda: logs.openhands_v0() + logs.openhands_sdk(), "t.json"),
    "mooncake": (logs.mooncake_lines, "m.jsonl"),
    "aiperf": (
        lambda: [
            {"session_id": "a", "input_length": 30, "output_length": 4, "hash_ids": [1], "delay": 5},
            {"session_id": "a", "messages": [{"role": "user", "content": "hi"}], "timestamp": 9},
            {"session_id": "a", "payload": {"prompt": "p"}, "context_mode": "x", "tools": []},
        ],
        "a.jsonl",
    ),
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """``(container, key)`` of everything inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    found = [(value, key) for key in keys]
    return found + [place for key in keys for place in places(value[key])]


@pytest.mark.parametrize("form", SAMPLES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_values(tmp_path: Path, form: str, data: st.DataObject) -> None:
    sample, file_name = SAMPLES[form]
    document = copy.deepcopy(sample())
    for _ in range(data.draw(st.integers(1, 4))):
        found = places(document)
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        container[key] = copy.deepcopy(data.draw(ODD))
    write = logs.write_lines if file_name.endswith(".jsonl") else logs.write_json
    path, out = write(tmp_path / "logs" / file_name, document), tmp_path / "out.jsonl"
    code = main(["import", "--format", form, str(path), "-o", str(out)])
    assert code in (0, 2)
    if code == 0:
        assert list(read_traces(out))
