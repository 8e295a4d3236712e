"""Reading tool calls off outputs, with SGLang's own detectors and a real (byte-level) tokenizer."""

import logging
import time

import pytest

pytest.importorskip("sglang.srt.function_call.function_call_parser")

from transformers import AutoTokenizer

from eval.tiny_model import TinyModel, write_tiny_model
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.scheduling import tool_calls
from sglang_agentcache.scheduling.tool_calls import MAX_OUTPUT_TOKENS, ToolCallReader

SLEEP, LIST = ToolCall("sleep", '{"seconds": 3}'), ToolCall("ls", '{"path": "/tmp"}')
QWEN_SLEEP = '<tool_call>\n{"name": "sleep", "arguments": {"seconds": 3}}\n</tool_call>'
QWEN_LIST = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'
TOOLS = ("sleep", "ls")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory, TinyModel())
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture
def read(tokenizer):
    def read(text, tool_names=TOOLS, *, parser="qwen", reasoning=None, cut_off=False, prompt=""):
        reader = ToolCallReader(tokenizer, parser, reasoning)
        ids, prompt_ids = (tokenizer.encode(part, add_special_tokens=False) for part in (text, prompt))
        return reader.read(ids, tool_names, cut_off, prompt_ids)

    return read


# One parallel pair in the formats of the common families.
FORMATS = {
    "qwen": f"Let me see.\n{QWEN_SLEEP}\n{QWEN_LIST}",
    "hermes": QWEN_SLEEP + QWEN_LIST,
    "interns1": (
        '<|action_start|> <|plugin|>\n{"name": "sleep", "parameters": {"seconds": 3}}<|action_end|>'
        '<|action_start|> <|plugin|>\n{"name": "ls", "parameters": {"path": "/tmp"}}<|action_end|>'
    ),
    "mistral": '[TOOL_CALLS] [{"name": "sleep", "arguments": {"seconds": 3}}, '
    '{"name": "ls", "arguments": {"path": "/tmp"}}]',
    "llama3": '<|python_tag|>{"name": "sleep", "parameters": {"seconds": 3}};'
    '{"name": "ls", "parameters": {"path": "/tmp"}}',
    "pythonic": '[sleep(seconds=3), ls(path="/tmp")]',
    "deepseekv31": (
        '<|tool▁calls▁begin|><|tool▁call▁begin|>sleep<|tool▁sep|>{"seconds": 3}<|tool▁call▁end|>'
        '<|tool▁call▁begin|>ls<|tool▁sep|>{"path": "/tmp"}<|tool▁call▁end|><|tool▁calls▁end|>'
    ).replace("|", "\uff5c"),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.sleep:0<|tool_call_argument_begin|>"
        '{"seconds": 3}<|tool_call_end|><|tool_call_begin|>functions.ls:1<|tool_call_argument_begin|>'
        '{"path": "/tmp"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=sleep>\n<parameter=seconds>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=ls>\n<parameter=path>\n/tmp\n</parameter>\n</function>\n</tool_call>"
    ),
    "poolside_v1": (
        "<tool_call>sleep\n<arg_key>seconds</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
        "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>/tmp</arg_value>\n</tool_call>"
    ),
    "glm45": (
        "<tool_call>sleep\n<arg_key>seconds</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
        "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>/tmp</arg_value>\n</tool_call>"
    ),
    "gpt-oss": (
        "<|channel|>commentary to=functions.sleep<|constrain|>json<|message|>"
        '{"seconds": 3}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.ls<|constrain|>json<|message|>"
        '{"path": "/tmp"}<|call|>'
    ),
}


@pytest.mark.parametrize("parser", FORMATS)
class TestEveryFormat:
    def names(self, calls):
        return [call.name for call in calls]

    def test_parallel_calls_in_order(self, read, parser):
        calls = read(FORMATS[parser], parser=parser)
        assert self.names(calls) == ["sleep", "ls"]
        assert "3" in calls[0].arguments
        assert "/tmp" in calls[1].arguments

    def test_any_name_counts_where_no_tools_are_declared(self, read, parser):
        assert self.names(read(FORMATS[parser], (), parser=parser)) == ["sleep", "ls"]

    def test_an_unknown_tool_does_not_drop_its_sibling(self, read, parser):
        assert self.names(read(FORMATS[parser], ("ls",), parser=parser)) == ["ls"]
        assert self.names(read(FORMATS[parser], ("sleep",), parser=parser)) == ["sleep"]

    def test_only_unknown_tools_leave_the_wait_unknown(self, read, parser):
        assert read(FORMATS[parser], ("other",), parser=parser) is None

    def test_no_call_is_a_person(self, read, parser):
        assert read("All done.", parser=parser) == ()

    def test_a_cut_off_output_without_a_call_is_unknown(self, read, parser):
        assert read("I shall now", parser=parser, cut_off=True) is None


def test_arguments_arrive(read):
    assert read(FORMATS["qwen"]) == (SLEEP, LIST)


def test_a_cut_off_output_keeps_what_was_complete(read):
    assert read(f"{QWEN_SLEEP}\n{QWEN_LIST[:-20]}", cut_off=True) == (SLEEP,)
    assert read(QWEN_SLEEP[:-20], cut_off=True) is None


class TestReasoning:
    def test_a_call_that_is_only_thought_of(self, read):
        assert read(f"<think>I could {QWEN_SLEEP}</think>No need.") == ()
        assert read(f"<think>I could {QWEN_SLEEP}</think>{QWEN_LIST}") == (LIST,)

    def test_a_section_that_the_prompt_opened(self, read):
        prompt = "<|im_start|>assistant\n<think>\n"
        assert read(f"I could {QWEN_SLEEP}</think>{QWEN_LIST}", prompt=prompt) == (LIST,)
        assert read(f"I could {QWEN_SLEEP}", prompt=prompt, cut_off=True) is None

    def test_a_section_that_nothing_opened(self, read):
        assert read(f"I could {QWEN_SLEEP}</think>{QWEN_LIST}") == (LIST,)

    def test_a_section_never_closed(self, read):
        assert read(f"<think>I could {QWEN_SLEEP}") == ()
        assert read(f"<think>I could {QWEN_SLEEP}", cut_off=True) is None

    def test_marks_inside_arguments(self, read):
        call = '<tool_call>\n{"name": "ls", "arguments": {"path": "<think></think>"}}\n</tool_call>'
        assert read(call, prompt="<|im_start|>assistant\n") == (
            ToolCall("ls", '{"path": "<think></think>"}'),
        )

    @pytest.mark.parametrize("parser", ["deepseek-r1", "qwen3", "deepseek-v3", "kimi"])
    def test_with_sglangs_reasoning_parsers(self, read, parser):
        start, end = ("◁think▷", "◁/think▷") if parser == "kimi" else ("<think>", "</think>")
        text = f"{start}I could {QWEN_SLEEP}{end}\n{QWEN_LIST}"
        assert read(text, reasoning=parser) == (LIST,)
        assert read(text.removeprefix(start), reasoning=parser, prompt=f"assistant\n{start}") == (LIST,)
        assert read(QWEN_LIST, reasoning=parser, prompt=f"{start}\n\n{end}\n\n") == (LIST,)


class TestBounds:
    def test_only_the_end_of_a_long_output_is_read(self, read):
        long = "x" * (MAX_OUTPUT_TOKENS + 10)
        assert read(long + QWEN_LIST) == (LIST,)
        assert read(QWEN_LIST + long) is None

    def test_too_many_calls_are_unknown(self, read, caplog):
        assert read("<tool_call>\n" * 1000) is None
        assert len(read(QWEN_LIST * 100)) == tool_calls.MAX_CALLS

    def test_a_decode_error_is_unknown_and_told_once(self, tokenizer, caplog):
        reader = ToolCallReader(tokenizer, "qwen")
        with caplog.at_level(logging.DEBUG, logger=tool_calls.__name__):
            assert [reader.read([-5, 1 << 80]) for _ in range(3)] == [None] * 3
        levels = [record.levelname for record in caplog.records if record.name == tool_calls.__name__]
        assert levels == ["WARNING", "DEBUG", "DEBUG"]
        assert reader.failures == 3

    def test_detectors_do_not_fill_the_log(self, read, caplog):
        with caplog.at_level(logging.INFO):
            read('<tool_call>\n{"name": \n</tool_call>')
            read(QWEN_SLEEP, ("other",))
        assert not [record for record in caplog.records if record.name.startswith("sglang.")]


def test_the_environment_is_as_before(read, monkeypatch):
    from sglang.srt.environ import envs

    monkeypatch.delenv("SGLANG_FORWARD_UNKNOWN_TOOLS", raising=False)
    read(FORMATS["qwen"])
    assert not envs.SGLANG_FORWARD_UNKNOWN_TOOLS.get()
    monkeypatch.setenv("SGLANG_FORWARD_UNKNOWN_TOOLS", "true")
    assert read(QWEN_SLEEP, ("other",)) == (SLEEP,)


def test_cost_of_an_ordinary_output(tokenizer, record_property):
    """200 tokens: far below a decode step of a model worth serving."""
    reader = ToolCallReader(tokenizer, "qwen", "qwen3")
    thought = "x" * (200 - len(QWEN_LIST) - len("</think>"))
    ids = tokenizer.encode(f"{thought}</think>{QWEN_LIST}", add_special_tokens=False)
    prompt = tokenizer.encode("<|im_start|>assistant\n<think>\n", add_special_tokens=False)
    assert len(ids) == 200
    times = []
    for _ in range(200):
        start = time.process_time()
        assert reader.read(ids, TOOLS, False, prompt) == (LIST,)
        times.append(time.process_time() - start)
    median_us = sorted(times)[len(times) // 2] * 1e6
    record_property("median_us", median_us)
    print(f"\nread of 200 output tokens: {median_us:.0f} us (median of {len(times)})")
    assert median_us < 2_000
