"""Whatever a model or a client writes as a tool call: nothing raises, and the time is bounded."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sglang.srt.function_call.function_call_parser")

from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.function_call.parser_names import TOOL_CALL_PARSER_NAMES

from sglang_agentcache.predictor.store import load_default
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.scheduling.tool_calls import (
    MAX_ARGUMENTS_CHARS,
    MAX_CALLS,
    MAX_NAME_CHARS,
    ToolCallReader,
)
from sglang_agentcache.serving.hints import HintError, parse, unpack
from sglang_agentcache.serving.tools import declared_tools

# Parsers that need a tokenizer of their own model.
PARSERS = [name for name in TOOL_CALL_PARSER_NAMES if name != "response_template"]
BOUND_S = 0.5
"""CPU seconds for the worst text of the slowest detector; most take 1 to 5 ms."""

MARKS = (
    *("<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>", "<function=a>", "<parameter=a>"),
    *("<arg_key>", "<arg_value>", "[TOOL_CALLS] [", "<|python_tag|>", "<think>", "</think>", "[a(b=", "a="),
    *("<|tool_call_begin|>functions.a:0", "<|channel|>commentary to=functions.a<|message|>", "<|call|>"),
    *('{"name": "a", "arguments": ', '{"a":', "{", "}", "[", "]", '"', "\\", "\x00", "\x1b", "\n", " "),
    *('<invoke name="a">', '<parameter name="a">', "<dots_function_call>", "<|action_start|> <|plugin|>\n"),
)


class Characters:
    """A tokenizer whose tokens are characters."""

    is_fast = True

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(map(ord, text))

    def get_vocab(self) -> dict[str, int]:
        return {}


def check(parser: str, text: str, tools: tuple[str, ...] = ("a",)) -> None:
    reader = ToolCallReader(Characters(), parser, None)
    start = time.process_time()
    calls = reader.read(list(map(ord, text)), tools, False, [10])
    assert time.process_time() - start < BOUND_S, f"{parser}: {text[:80]!r}..."
    assert calls is None or isinstance(calls, tuple)
    assert len(calls or ()) <= MAX_CALLS
    for call in calls or ():
        assert 0 < len(call.name) <= MAX_NAME_CHARS
        assert len(call.arguments) <= MAX_ARGUMENTS_CHARS


texts = st.one_of(
    st.lists(st.sampled_from(MARKS), max_size=60).map("".join),
    st.binary(max_size=400).map(lambda data: data.decode("latin-1")),
    st.text(max_size=200),
    st.builds(
        lambda mark, count, end: mark * count + end, st.sampled_from(MARKS), st.integers(1, 3_000), st.text()
    ),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parser=st.sampled_from(PARSERS), text=texts, tools=st.sampled_from([(), ("a",), ("b", "")]))
def test_random_outputs(parser: str, text: str, tools: tuple[str, ...]) -> None:
    check(parser, text, tools)


def worst() -> dict[str, str]:
    deep = "[" * 20_000 + "]" * 20_000
    return {
        "1 MiB": '<tool_call>\n{"name": "a", "arguments": {"x": "' + "y" * (1 << 20) + '"}}\n</tool_call>',
        "deep": '<tool_call>\n{"name": "a", "arguments": {"x": ' + deep + "}}\n</tool_call>",
        "deep object": '{"a":' * 20_000,
        "control characters": '<tool_call>\n{"name": "\x00\x1b", "arguments": {"x": "\x00\ud800"}}\n</tool_call>'
        * 400,
        "every byte": "".join(map(chr, range(256))) * 256,
    } | {f"{mark!r} again and again": mark * (65_536 // len(mark)) for mark in MARKS}


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
def test_the_worst_outputs(parser: str) -> None:
    mark = FunctionCallParser([], parser, tokenizer=Characters()).detector.bot_token or "<tool_call>\n"
    for text in worst().values():
        check(parser, text)
        check(parser, mark + text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(name=st.text(max_size=300), arguments=json_values, more=json_values)
def test_random_hints(name: str, arguments: object, more: object) -> None:
    """Refused by name or taken whole; what is taken survives the way to the predictor."""
    payload = {"tool_calls": [{"name": name, "arguments": arguments}, more]}
    for candidate in (payload, {"tool_calls": payload["tool_calls"][:1]}, more, {"tools": more}):
        try:
            hints = parse(candidate, "p")
        except HintError as refused:
            assert refused.field.startswith("p")
            assert unpack(candidate, "p")[0].tool_calls is None
        else:
            assert unpack(candidate, "p")[0] == hints
    declared_tools({"tools": more, "messages": [more]})


@pytest.fixture(scope="module")
def predictor():
    return load_default()


@pytest.mark.parametrize(
    "arguments",
    [
        "x" * (1 << 20),
        '{"command": "' + "y" * (1 << 20),
        "[" * 100_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "\x00\x1b\ud800" * 1_000,
        json.dumps({str(number): number for number in range(50_000)}),
    ],
    ids=["1 MiB", "1 MiB command", "brackets", "deep", "control characters", "wide"],
)
def test_the_predictor_takes_any_arguments_in_bounded_time(predictor, arguments: str) -> None:
    start = time.process_time()
    wait = predictor.prepare((ToolCall("bash", arguments),))
    assert predictor.expected_remaining([wait], [1.0])[0] > 0
    assert time.process_time() - start < 0.5
