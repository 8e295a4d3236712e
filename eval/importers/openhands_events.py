"""What one OpenHands event means for the context, in both generations of the format."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from eval.importers.context import Context, count, mapping, mappings, name, seconds, text_chars
from eval.importers.turns import Call, Reply, TurnBuilder

SILENT_ACTIONS = frozenset({"change_agent_state", "recall", "null", "pause", "resume", "start"})
SILENT_OBSERVATIONS = frozenset({"agent_state_changed", "null", "think", "user_rejected"})
RESULTS = frozenset({"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"})


def is_event(value: object) -> bool:
    """Whether a JSON value has an event's form."""
    return (
        isinstance(value, dict)
        and "source" in value
        and any(isinstance(value.get(key), str) for key in ("action", "observation", "kind"))
    )


class Conversation:
    """One conversation's events, told in order."""

    def __init__(self, context: Context) -> None:
        self.builder = TurnBuilder(context.argument_text)
        self.model: str | None = None
        self.version: str | None = None
        self.events = 0
        self.system = sha256()
        self._reply: Reply | None = None
        self._response: str | None = None
        self._actions: dict[str, str] = {}
        self._usages: dict[str, dict[str, Any]] = {}
        self._latencies: dict[str, float | None] = {}

    def event(self, event: object) -> None:
        """Take one event; what is not one is ignored."""
        if not isinstance(event, dict) or not is_event(event):
            return
        self.events += 1
        if isinstance(event.get("kind"), str):
            self._sdk_event(event)
        elif isinstance(event.get("action"), str):
            self._action(event)
        else:
            self._observation(event)

    def statistics(self, value: object) -> None:
        """Learn token counts and latencies by response id from wherever they are in a state record."""
        if isinstance(value, list):
            for item in value:
                self.statistics(item)
        elif isinstance(value, dict):
            for item in mappings(value.get("token_usages")):
                self._usages[str(item.get("response_id"))] = item
            for item in mappings(value.get("response_latencies")):
                self._latencies[str(item.get("response_id"))] = seconds(item.get("latency"))
            for key, item in value.items():
                if key == "llm" and isinstance(item, dict):
                    self.model = name(item.get("model")) or self.model
                elif key not in ("token_usages", "response_latencies") and isinstance(item, dict | list):
                    self.statistics(item)

    def _generated(self, response: str, time: float | None) -> Reply:
        """The reply that a response id names; several events of one response are parallel calls."""
        if self._reply is None or self._response != response:
            self._reply, self._response = self.builder.open(Reply()), response
        self._reply.end = time if time is not None else self._reply.end
        self._reply.llm_s = self._latencies.get(response)
        if usage := self._usages.get(response):
            _count(self._reply, usage, usage.get("cache_read_tokens"))
        return self._reply

    def _action(self, event: dict[str, Any]) -> None:
        action, source = event["action"], event.get("source")
        arguments = mapping(event.get("args"))
        time = seconds(event.get("timestamp"))
        if action in SILENT_ACTIONS:
            return
        if action == "system":
            self._system(arguments.get("content"), arguments.get("tools"))
            self.version = name(arguments.get("openhands_version")) or self.version
        elif action == "condensation":
            self.builder.compact()
            self.builder.text(text_chars(arguments.get("summary")))
        elif source == "user":
            self.builder.prompt(text_chars(arguments.get("content") or event.get("message")), time)
        elif source == "agent":
            self._agent_action(event, arguments, time)

    def _system(self, content: object, tools: object) -> None:
        schemas = str(tools or "")
        self.builder.system(text_chars(content) + len(schemas))
        self.system.update(f"{content}{schemas}".encode())

    def _agent_action(self, event: dict[str, Any], arguments: dict[str, Any], time: float | None) -> None:
        metadata = mapping(event.get("tool_call_metadata"))
        response = mapping(metadata.get("model_response"))
        reply = self._generated(str(response.get("id") or f"event {event.get('id')}"), time)
        usage = mapping(response.get("usage"))
        _count(reply, usage, mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        self.model = name(response.get("model")) or self.model
        reply.output_chars += len(str(arguments))
        if event["action"] in ("message", "finish"):
            return
        call_id = str(metadata.get("tool_call_id") or f"event {event.get('id')}")
        self._actions[str(event.get("id"))] = call_id
        kept = {key: item for key, item in arguments.items() if key not in ("thought", "content")}
        reply.calls[call_id] = Call(name(metadata.get("function_name")) or event["action"], kept)

    def _observation(self, event: dict[str, Any]) -> None:
        chars = text_chars(event.get("content"))
        call_id = self._actions.pop(str(event.get("cause")), None)
        if call_id is None:
            if event.get("observation") not in SILENT_OBSERVATIONS:
                self.builder.text(chars)
            return
        self.builder.result(
            call_id,
            chars,
            seconds(event.get("timestamp")),
            human=event.get("observation") == "user_rejected",
        )

    def _sdk_event(self, event: dict[str, Any]) -> None:
        kind, time = event["kind"], seconds(event.get("timestamp"))
        if kind == "SystemPromptEvent":
            self._system(event.get("system_prompt"), event.get("tools"))
        elif kind == "ConversationStateUpdateEvent":
            self.statistics(event.get("value"))
            if self._reply is not None and self._response is not None:
                self._generated(self._response, None)
        elif kind == "Condensation":
            self.builder.compact()
            self.builder.text(text_chars(event.get("summary")))
        elif kind == "MessageEvent":
            self._message(event, time)
        elif kind == "ActionEvent":
            self._call(event, time)
        elif kind in RESULTS:
            content = event.get("observation") or event.get("error") or event.get("rejection_reason")
            human = kind == "UserRejectObservation"
            self.builder.result(str(event.get("tool_call_id")), text_chars(content), time, human=human)

    def _message(self, event: dict[str, Any], time: float | None) -> None:
        message = mapping(event.get("llm_message"))
        chars = text_chars(message.get("content"))
        if message.get("role") == "assistant":
            response = str(event.get("llm_response_id") or f"event {event.get('id')}")
            self._generated(response, time).output_chars += chars
        else:
            self.builder.prompt(chars, time)

    def _call(self, event: dict[str, Any], time: float | None) -> None:
        reply = self._generated(str(event.get("llm_response_id")), time)
        call = mapping(event.get("tool_call"))
        function = mapping(call.get("function")) or call
        arguments = function.get("arguments")
        texts = text_chars(event.get("thought")) + text_chars(event.get("reasoning_content"))
        reply.output_chars += texts + len(str(arguments or ""))
        reply.calls[str(event.get("tool_call_id"))] = Call(name(event.get("tool_name")), arguments)


def _count(reply: Reply, usage: dict[str, Any], cached: object) -> None:
    if usage.get("prompt_tokens"):
        reply.prompt_tokens = count(usage.get("prompt_tokens"))
        reply.output_tokens = count(usage.get("completion_tokens"))
        reply.cached_tokens = count(cached)
