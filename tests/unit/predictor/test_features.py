import json
import math

import numpy as np
import pytest

from sglang_agentcache.predictor.features import NUMBERS, call_features
from sglang_agentcache.predictor.tool_calls import MAX_PARALLEL_CALLS, ToolCall, Wait, as_wait


def number(arguments: object, name: str) -> float:
    """The number a call's arguments give, in its own unit."""
    return 10.0 ** call_features(ToolCall("Bash", arguments)).numbers[NUMBERS.index(name)] - 1


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("go test ./...", "go test"),
        ("cd /srv/app && npm run build 2>&1 | tail -5", "npm run"),
        ("FOO=1 sudo timeout 30 cargo build", "cargo build"),
        ("/usr/bin/git status", "git status"),
        ("echo hello", "shell"),
    ],
)
def test_program_of_a_command(command, program):
    assert call_features(ToolCall("Bash", {"command": command})).program == f"Bash|{program}"


def test_numbers_of_a_command():
    assert number({"command": "sleep 60 && sleep 2m"}, "sleep") == pytest.approx(180)
    assert number({"command": "timeout 90 make"}, "timeout") == pytest.approx(90)
    assert number({"command": "make", "timeout": 120_000}, "timeout") == pytest.approx(120)
    assert number({"cmd": "make", "yield_time_ms": 5000}, "block") == pytest.approx(5)
    assert number({"command": "make", "run_in_background": True}, "background") == pytest.approx(1)
    assert math.isnan(number({"command": "make"}, "sleep"))


def test_text_object_and_code_carry_the_same_command():
    arguments = {"command": "go test ./pkg", "timeout": 1000}
    parsed = call_features(ToolCall("Bash", arguments))
    for other in (json.dumps(arguments), json.dumps(arguments)[:-1], json.dumps(arguments).encode()):
        read = call_features(ToolCall("Bash", other))
        assert read.program == parsed.program
        assert np.array_equal(read.terms, parsed.terms)
    code = call_features(ToolCall("exec", 'await tools.exec_command({cmd:"go vet ./x", yield_time_ms:1000})'))
    assert code.program == "exec|go vet"
    assert call_features(ToolCall("shell", {"command": ["go", "test"]})).program == "shell|go test"


def test_bulk_counts_but_is_not_read():
    short = call_features(ToolCall("Write", {"file_path": "a.go", "content": "x y z"}))
    long = call_features(ToolCall("Write", {"file_path": "a.go", "content": "q " * 100_000}))
    assert np.array_equal(short.terms, long.terms)
    assert long.numbers[NUMBERS.index("bulk_length")] > short.numbers[NUMBERS.index("bulk_length")]


def test_as_wait_reads_every_form():
    call = ToolCall("t", "x")
    assert as_wait(None) == Wait()
    for form in (call, ("t", "x"), {"name": "t", "arguments": "x"}, Wait((call,)), (call,)):
        assert as_wait(form) == Wait((call,))
    assert len(as_wait((call,) * 100).calls) == MAX_PARALLEL_CALLS
