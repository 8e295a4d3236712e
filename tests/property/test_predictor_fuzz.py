"""Whatever a model writes as a tool call: an answer, finite, in bounded time."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.synthetic import Generator
from sglang_agentcache.predictor.tool_calls import ToolCall

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
shell = st.lists(
    st.sampled_from(
        [
            "sleep",
            "timeout",
            "go test",
            "&&",
            "|",
            ";",
            "'",
            '"',
            "\\",
            "$(",
            "9" * 30,
            "-",
            "\n",
            "\x00",
            "=",
            "é",
        ]
    ),
    max_size=40,
).map(" ".join)
arguments = values | shell | st.builds(lambda text: {"command": text, "timeout": 9**99}, shell)


def predictor_of(estimator: str) -> DurationPredictor:
    records = Generator(seed=5).sessions(500)
    return DurationPredictor(estimator, n_trees=10, n_clusters=5).fit(
        records.waits, records.durations, sessions=records.sessions
    )


PREDICTORS = {name: predictor_of(name) for name in ("stacked", "cachewise")}


@pytest.mark.parametrize("estimator", PREDICTORS)
@settings(max_examples=150, deadline=None)
@given(
    name=st.text(max_size=200) | values, given_arguments=arguments, elapsed=st.floats(), duration=st.floats()
)
def test_any_call_has_a_finite_answer(estimator, name, given_arguments, elapsed, duration):
    predictor = PREDICTORS[estimator]
    history = SessionHistory()
    for call in (
        (name, given_arguments),
        {"name": name, "arguments": given_arguments},
        ToolCall(name, given_arguments),
    ):
        wait = predictor.prepare(call, history)
        answers = [
            predictor.expected_remaining([wait], elapsed)[0],
            predictor.expected_remaining([wait], elapsed, horizon=60.0)[0],
            predictor.median_remaining([wait], elapsed)[0],
            predictor.return_rate([wait], elapsed)[0],
            predictor.return_rate([wait], elapsed, tau=30.0)[0],
        ]
        assert np.isfinite(answers).all() and min(answers) > 0
        predictor.observe(wait, duration, history=history, censored=bool(len(history) % 2))


@settings(max_examples=100, deadline=None)
@given(first=st.floats(0, 1e7), second=st.floats(0, 1e7), tau=st.floats(1e-3, 1e5))
def test_longer_horizons_and_later_deadlines_never_shrink(first, second, tau):
    predictor = PREDICTORS["stacked"]
    waits = [
        predictor.prepare(call) for call in (("Bash", '{"command": "go test ./..."}'), ("Read", "{}"), None)
    ]
    near, far = sorted((max(first, 1e-3), max(second, 1e-3)))
    assert (
        predictor.expected_remaining(waits, 5.0, horizon=near)
        <= predictor.expected_remaining(waits, 5.0, horizon=far) * (1 + 1e-6) + 1e-6
    ).all()
    assert (
        predictor.return_rate(waits, first, tau=tau)
        <= predictor.return_rate(waits, first, tau=2 * tau) * (1 + 1e-6) + 1e-9
    ).all()


MEBIBYTE = 1 << 20


def nested(depth: int) -> object:
    value: object = "leaf"
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("estimator", PREDICTORS)
@pytest.mark.parametrize(
    "huge",
    [
        "x" * MEBIBYTE,
        '"' * MEBIBYTE,
        "{" * MEBIBYTE,
        "[" * MEBIBYTE,
        'a:"' * (MEBIBYTE // 3),
        "timeout - " * (MEBIBYTE // 10),
        '{"command": "' + "sleep 1; " * (MEBIBYTE // 9) + '"}',
        {"command": "'" * MEBIBYTE},
        {"command": "\x00\ud800" * (MEBIBYTE // 2)},
        {str(i): i for i in range(100_000)},
        [["x"] * 1000] * 1000,
        b"\xff" * MEBIBYTE,
        nested(100_000),
    ],
    ids=lambda value: f"{type(value).__name__}-{len(value)}",
)
def test_a_mebibyte_takes_milliseconds(estimator, huge):
    predictor = PREDICTORS[estimator]
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        assert np.isfinite(predictor.predict(("Bash", huge)))
        best = min(best, time.perf_counter() - began)
    assert best < 0.02
