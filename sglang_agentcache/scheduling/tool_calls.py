"""Which tools a finished turn called, read from the model's own output with SGLang's detectors.

Target: SGLang 0.5.23, `srt/function_call` (`--tool-call-parser`) and `srt/parser/reasoning_parser`. Always the
final parse of the whole output: whether the client streams makes no difference.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.environ import envs
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser

from sglang_agentcache.predictor.tool_calls import ToolCall

logger = logging.getLogger(__name__)

MAX_OUTPUT_TOKENS = 16_384
"""Only the end of a longer output is decoded."""
MAX_TEXT_CHARS = 32_768
"""Only the end of a longer text is parsed: some detectors take time quadratic in it."""
SHORT_TEXT_CHARS = {"pythonic": 4_096}
"""The same for a detector that is slower still."""
MAX_MARKS = 128
"""An output that begins calls more often is not read, for the same reason."""
MAX_SPACES = 128
"""Longer runs of white space are shortened, for the same reason."""
MAX_CALLS = 64
MAX_NAME_CHARS = 256
MAX_ARGUMENTS_CHARS = 65_536
PROMPT_TAIL_TOKENS = 32
_MAX_TOKEN = 1 << 24
_THINK, _THOUGHT = "<think>", "</think>"
"""The marks of a reasoning section where no `--reasoning-parser` is set."""
_SPACES = re.compile(rf"(\s{{{MAX_SPACES}}})\s+")
_NO_TOOL = "\0"
"""A detector that is given no tools looks for none."""


class ToolCallReader:
    """Reads tool calls off outputs; never raises, and bounds the work on one output.

    The detectors write a warning for each call they cannot read. The HTTP process does so already for the
    same text, so in this process their loggers are silenced.

    Args:
        tokenizer: SGLang's, as the scheduler has it.
        parser: a name of `--tool-call-parser`.
        reasoning_parser: a name of `--reasoning-parser`, or None.
    """

    def __init__(self, tokenizer: Any, parser: str, reasoning_parser: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.parser = parser
        self.reasoning_parser = reasoning_parser
        self.failures = 0
        for name in ("sglang.srt.function_call", "sglang.srt.parser.response_template"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def read(
        self,
        output_ids: Sequence[int],
        tool_names: Sequence[str] | None = None,
        finished_by_length: bool = False,
        prompt_ids: Sequence[int] = (),
    ) -> tuple[ToolCall, ...] | None:
        """The calls of one finished output.

        Args:
            output_ids: what the model wrote, without the token that stopped it.
            tool_names: the tools that the request declared; calls of others never reach the client. None: any.
            finished_by_length: the output was cut off; only what was complete by then counts.
            prompt_ids: the prompt; its end says whether the output begins inside a reasoning section.

        Returns:
            the calls in the order written; () if no tool was called, so that a person is waited for; None if
            that cannot be told.
        """
        try:
            return self._read(output_ids, tool_names, finished_by_length, prompt_ids)
        except Exception as error:
            # Detectors run on whatever a model writes: deep nesting and bad tokens raise all kinds of errors.
            level = logging.DEBUG if self.failures else logging.WARNING
            logger.log(
                level,
                "agentcache: the %s parser cannot read an output (%s); such turns count as unknown",
                self.parser,
                type(error).__name__,
            )
            self.failures += 1
            return None

    def _read(
        self,
        output_ids: Sequence[int],
        tool_names: Sequence[str] | None,
        finished_by_length: bool,
        prompt_ids: Sequence[int],
    ) -> tuple[ToolCall, ...] | None:
        text = self._decode(output_ids[-MAX_OUTPUT_TOKENS:])
        limit = SHORT_TEXT_CHARS.get(self.parser, MAX_TEXT_CHARS)
        whole = len(output_ids) <= MAX_OUTPUT_TOKENS and len(text) <= limit
        text = _SPACES.sub(r"\1", text[-limit:])
        found = list(self._detect(self._answer(text, prompt_ids if whole else ()), tool_names or ()))
        calls = [call for call in found if _declared(call.name, tool_names)]
        if calls:
            return tuple(calls[:MAX_CALLS])
        # A call that the client never gets, or the part of one: nobody knows what comes next.
        return None if found or finished_by_length or not whole else ()

    def _decode(self, ids: Sequence[int]) -> str:
        # With special tokens, as is every tokenizer's default: in many models they are the marks around calls.
        return str(self.tokenizer.decode(list(ids)))

    def _answer(self, text: str, prompt_ids: Sequence[int]) -> str:
        """What follows the reasoning section; "" inside one.

        Args:
            prompt_ids: empty where it is not known how the text begins.
        """
        # Images stand in a prompt as ids that are no tokens.
        tail_ids = [token for token in prompt_ids[-PROMPT_TAIL_TOKENS:] if 0 <= token < _MAX_TOKEN]
        tail = self._decode(tail_ids) if tail_ids else ""
        if self.reasoning_parser is not None:
            start, end = _marks(self.reasoning_parser)
            opened = tail.rfind(start) - tail.rfind(end)
            if opened < 0 and start not in text:
                return text
            parser = ReasoningParser(
                self.reasoning_parser,
                stream_reasoning=False,
                tokenizer=self.tokenizer,
                tool_call_parser_active=True,
            )
            return parser.parse_non_stream(start + text if opened > 0 else text)[1] or ""
        if tail.rfind(_THINK) > tail.rfind(_THOUGHT) or text.lstrip().startswith(_THINK):
            return text.partition(_THOUGHT)[2]
        return text if prompt_ids or _THOUGHT not in text else text.partition(_THOUGHT)[2]

    def _detect(self, text: str, tool_names: Sequence[str]) -> Iterator[ToolCall]:
        parser = FunctionCallParser(_tools(tuple(tool_names)), self.parser, tokenizer=self.tokenizer)
        mark = parser.detector.bot_token
        if mark and text.count(mark) > MAX_MARKS:
            raise ValueError(f"more than {MAX_MARKS} calls")
        # Both, since some detectors ask one and some the other; refusing one name, some drop its siblings.
        parser.detector._get_tool_indices = lambda tools: _AnyName()
        with _forwarding_unknown_tools():
            _, calls = parser.parse_non_stream(text)
        for call in calls:
            if call.name:
                yield ToolCall(call.name[:MAX_NAME_CHARS], (call.parameters or "")[:MAX_ARGUMENTS_CHARS])


class _AnyName(dict[str, int]):
    """Every name is a tool's; its place in the list of tools is nowhere."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return -1


class _forwarding_unknown_tools:
    """`SGLANG_FORWARD_UNKNOWN_TOOLS` for one parse; SGLang's own override outlasts an exception."""

    def __enter__(self) -> None:
        self._override = envs.SGLANG_FORWARD_UNKNOWN_TOOLS.override(True)
        self._override.__enter__()

    def __exit__(self, *error: object) -> None:
        self._override.__exit__(None, None, None)


def _declared(name: str, tool_names: Sequence[str] | None) -> bool:
    return not tool_names or name in tool_names or envs.SGLANG_FORWARD_UNKNOWN_TOOLS.get()


@functools.lru_cache(maxsize=256)
def _tools(names: tuple[str, ...]) -> list[Tool]:
    return [Tool(function=Function(name=name)) for name in names or (_NO_TOOL,)]


@functools.lru_cache(maxsize=8)
def _marks(reasoning_parser: str) -> tuple[str, str]:
    """What opens and closes a reasoning section; empty where the format has no such marks."""
    detector = ReasoningParser(reasoning_parser).detector
    return str(detector.think_start_token or ""), str(detector.think_end_token or "")
