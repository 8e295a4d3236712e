"""Turns from the messages of a log, by the rules under which the published traces were normalised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eval.trace import Turn

CHARS_PER_TOKEN = 4
"""Estimate where the log has no token count; such turns say ``prompt_est``."""
REWOUND = 0.5
"""A prompt below this share of the previous one was rewound or replaced, though the log does not say so."""
SHORTEST_REPLY_S = 0.005
"""No model replies faster."""

HUMAN_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode", "question", "request_user_input"})
"""Tools that wait for a person."""


def estimate(chars: int) -> int:
    """Tokens of a text of so many characters."""
    return chars // CHARS_PER_TOKEN


@dataclass
class Call:
    """A tool call that the model made."""

    name: str | None
    arguments: object = None


@dataclass
class _Result:
    call_id: str | None
    call: Call | None
    time: float | None
    seconds: float | None
    human: bool
    position: int
    """Of its call among the reply's; results without a call come last."""


@dataclass
class Reply:
    """What the model generated for one request. Times in seconds since the epoch; None: not in the log."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    output_chars: int = 0
    """Length of the logged output, for where the log has no count."""
    start: float | None = None
    """When it was sent, for where neither its trigger nor its latency has a time."""
    end: float | None = None
    llm_s: float | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    """By call id, in order."""
    prompt_chars: int | None = None
    """Length of the whole prompt, where the log shows it; then ``kept_chars`` of it start the one before
    and its reply."""
    kept_chars: int = 0


class TurnBuilder:
    """Collects what goes into the context and closes a turn with every reply. Tell it things in log order.

    A reply that the log writes piece by piece is opened, filled by the caller and closed. Input that comes
    meanwhile (a tool starts while its call is still streamed) belongs to the request after it.
    ``argument_text`` bounds a call's arguments. The turns' ``reset`` ones keep nothing yet: `finish` lets
    them keep the shared prefix, which is known only after all files are read.
    """

    def __init__(self, argument_text: Callable[[object], str | None]) -> None:
        self._argument_text = argument_text
        self.turns: list[Turn] = []
        self.start: float | None = None
        """When the first request could be sent."""
        self.system_tokens = 0
        """Estimated tokens of what `system` was told: every context starts with them."""
        self._end: float | None = None
        self._previous: float | None = None
        self._calls: dict[str, Call] = {}
        self._positions: dict[str, int] = {}
        self._durations: dict[str, float] = {}
        self._perm: str | None = None
        self._open: Reply | None = None
        self._after: list[Callable[[], None]] = []
        self.drop_pending()

    def open(self, reply: Reply) -> Reply:
        """Start a reply; what is open is closed first."""
        self.close()
        self._open = reply
        return reply

    @property
    def has_input(self) -> bool:
        """Input has come since the open reply began."""
        return bool(self._after)

    def close(self) -> None:
        """The open reply, if there is one, is complete."""
        reply, self._open = self._open, None
        if reply is None:
            return
        self.request(reply)
        after, self._after = self._after, []
        for give in after:
            give()
        for result in self._results:
            if result.seconds is None and result.call_id is not None:
                result.seconds = self._durations.get(result.call_id)
        self._durations.clear()

    def _deferred(self, give: Callable[[], None]) -> bool:
        if self._open is not None:
            self._after.append(give)
        return self._open is not None

    def drop_pending(self) -> None:
        """Forget the input since the last reply (it belongs to a request that is counted elsewhere)."""
        self._chars = 0
        self._results: list[_Result] = []
        self._prompted = False
        self._ready: float | None = None
        self._reset = False

    def system(self, chars: int) -> None:
        """Text in front of every context."""
        self.system_tokens += estimate(chars)
        self.text(chars)

    def text(self, chars: int) -> None:
        """Input that triggers nothing (reminders, attachments)."""
        if self._deferred(lambda: self.text(chars)):
            return
        self._chars += chars

    def prompt(self, chars: int, time: float | None) -> None:
        """A person's (or a simulated person's) message."""
        if self._deferred(lambda: self.prompt(chars, time)):
            return
        self._chars += chars
        self._prompted = True
        self._ready = time

    def result(
        self,
        call_id: str | None,
        chars: int,
        time: float | None,
        seconds: float | None = None,
        human: bool = False,
    ) -> None:
        """A tool's result; ``seconds`` is a duration that the agent itself recorded."""
        if self._deferred(lambda: self.result(call_id, chars, time, seconds, human)):
            return
        position = self._positions.get(call_id or "", len(self._positions))
        call = self._calls.pop(call_id or "", None)
        if call is None and position < len(self._positions):
            return  # Logged twice.
        self._chars += chars
        human = human or (call is not None and call.name in HUMAN_TOOLS)
        self._results.append(_Result(call_id, call, time, seconds, human, position))
        self._prompted = False
        self._ready = time

    def duration(self, call_id: str, seconds: float) -> None:
        """The recorded duration of a call whose result comes, or came, before the next reply begins."""
        self._durations[call_id] = seconds

    def compact(self) -> None:
        """The context was compacted or replaced: what comes next starts a new one."""
        if self._deferred(self.compact):
            return
        self._reset = True
        self._chars = 0

    def permission(self, mode: str) -> None:
        """The agent's permission mode from now on."""
        if not self._deferred(lambda: self.permission(mode)):
            self._perm = mode

    def request(self, reply: Reply, interval_s: float | None = None) -> None:
        """Close a turn: the input since the last reply triggered ``reply``."""
        first = not self.turns
        tools = bool(self._results) and not self._prompted
        if not (first or self._results or self._prompted):
            tools = bool(self._calls)
        ready = self._ready
        if ready is not None and reply.end is not None and reply.end - ready < SHORTEST_REPLY_S:
            # This is a copied history, with the time of the copy.
            ready = None
            for result in self._results:
                result.time = None
        begin = _first_known(ready, _before(reply.end, reply.llm_s), reply.start)
        if self.start is None:
            self.start = begin
        prompt, kept, reset = self._prompt(reply)
        gap = None if first else _difference(ready, self._end)
        llm_s = reply.llm_s if reply.llm_s is not None else _difference(reply.end, ready)
        last = self._last_result()
        self.turns.append(
            Turn(
                kind="tool" if tools else "user",
                prompt_tokens=prompt,
                new_input_tokens=prompt - kept,
                output_tokens=_output(reply),
                gap_s=gap,
                tool_name=last.call.name if last and last.call else None,
                tool_args=self._argument_text(last.call.arguments) if last and last.call else None,
                tools=self._parallel() if len(self._results) > 1 else None,
                tool_s=_rounded(last.seconds) if last else None,
                cached_tokens=reply.cached_tokens,
                llm_s=llm_s,
                t_s=_difference(begin, self.start),
                interval_s=_rounded(interval_s),
                perm=self._perm,
                human=any(result.human for result in self._results),
                reset=reset,
                prompt_est=not reply.prompt_tokens,
            )
        )
        self._end = reply.end
        self.drop_pending()
        self._calls = dict(reply.calls)
        self._positions = {name: index for index, name in enumerate(reply.calls)}

    def _prompt(self, reply: Reply) -> tuple[int, int, bool]:
        """Prompt tokens, kept tokens and whether the context was replaced."""
        before = self.turns[-1] if self.turns else None
        context = before.prompt_tokens + before.output_tokens if before else 0
        new = max(1, estimate(self._chars))
        if reply.prompt_chars is not None and not reply.prompt_tokens:
            prompt = max(1, estimate(reply.prompt_chars))
            return prompt, min(estimate(reply.kept_chars), context, prompt - 1), False
        if reply.prompt_tokens:
            prompt = reply.prompt_tokens
        elif self._reset:
            prompt = self.system_tokens + new
        else:
            prompt = context + new
        if before is None:
            return prompt, 0, False
        if self._reset or prompt < REWOUND * before.prompt_tokens:
            return prompt, 0, True
        if prompt > context:
            return prompt, context, False
        # Dropped thinking and outputs counted too high: the log's new text is the better measure.
        return prompt, max(0, prompt - new), False

    def _last_result(self) -> _Result | None:
        """The result that came last; where times are unknown, the last in the log."""
        known = [result for result in self._results if result.time is not None]
        if len(known) == len(self._results) and known:
            latest = max(result.time or 0.0 for result in known)
            return [result for result in known if result.time == latest][-1]
        return self._results[-1] if self._results else None

    def _parallel(self) -> list[tuple[str, float | None]]:
        """Every call's name and seconds since the reply, in the order of the calls."""
        results = sorted(self._results, key=lambda result: result.position)
        return [
            (
                (result.call.name if result.call else None) or "unknown",
                _difference(result.time, self._end)
                if result.time is not None and self._end is not None
                else _rounded(result.seconds),
            )
            for result in results
        ]


def _output(reply: Reply) -> int:
    return estimate(reply.output_chars) if reply.output_tokens is None else reply.output_tokens


def _first_known(*times: float | None) -> float | None:
    return next((time for time in times if time is not None), None)


def _before(end: float | None, duration: float | None) -> float | None:
    return None if end is None or duration is None else end - duration


def _difference(later: float | None, earlier: float | None) -> float | None:
    """Seconds between, at least 0 (a tool may finish while its call is still streamed); None if unknown."""
    return None if later is None or earlier is None else round(max(0.0, later - earlier), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(max(0.0, value), 3)
