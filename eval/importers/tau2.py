"""tau2-bench result files: one JSON document with ``info`` and ``simulations``.

The agent's requests are the assistant messages; the user is another model, and in some domains it calls tools
of its own, which the agent never sees. Only the policy text is logged, not the tool schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from eval.importers.context import Context, count, mapping, mappings, name, seconds, text_chars
from eval.importers.finish import Draft
from eval.importers.reading import LogFile
from eval.importers.turns import Call, Reply, TurnBuilder
from eval.trace import Trajectory

EXPECTED = 'a tau2-bench result document ({"info": ..., "simulations": [{"messages": [...]}]})'
PATTERNS = ("*.json",)

AGENT = "tau2-agent"


def trajectories(context: Context) -> Iterator[Draft]:
    yield from context.each_file(_results)


def _results(context: Context, file: LogFile) -> Iterator[Draft]:
    info: dict[str, Any] = {}
    for place, part in context.parts(file, "info", "simulations.item", required=("simulations.item",)):
        if place == "info":
            info = part if isinstance(part, dict) else {}
        elif isinstance(part, dict) and isinstance(part.get("messages"), list):
            if draft := _simulation(context, info, part):
                yield draft
        else:
            context.damage.record(file.path, "simulations", "a simulation without messages")


def _simulation(context: Context, info: dict[str, Any], run: dict[str, Any]) -> Draft | None:
    environment, agent = mapping(info.get("environment_info")), mapping(info.get("agent_info"))
    policy = str(environment.get("policy") or "")
    builder = TurnBuilder(context.argument_text)
    builder.system(len(policy))
    for index, message in enumerate(mappings(run["messages"])):
        if index == 0 and _is_greeting(message):
            builder.text(text_chars(message.get("content")))
        else:
            _message(builder, message)
    if not builder.turns:
        return None
    task = str(run.get("task_id"))
    domain = str(environment.get("domain_name") or "")
    run_id = str(run.get("id") or f"{domain}/{task}/{run.get('trial')}")
    prefix = builder.system_tokens
    item = Trajectory(
        trajectory_id=context.trajectory_id(run_id),
        session_group=context.group_id(run_id),
        source=context.source,
        agent=AGENT,
        model=name(agent.get("llm")),
        shared_prefix_id=f"tau2_{sha256(policy.encode()).hexdigest()[:12]}" if prefix else None,
        shared_prefix_tokens=prefix,
        shared_prefix_est="policy text chars/4 (tool schemas not included)" if prefix else None,
        start_s=seconds(run.get("start_time")),
        simulated_user=True,
        turns=builder.turns,
        n_turns=len(builder.turns),
    )
    return Draft(item)


def _is_greeting(message: dict[str, Any]) -> bool:
    """The fixed words that open a conversation were not generated."""
    generated = message.get("usage") or message.get("tool_calls") or message.get("cost")
    return message.get("role") == "assistant" and not generated


def _message(builder: TurnBuilder, message: dict[str, Any]) -> None:
    time = seconds(message.get("timestamp"))
    chars = text_chars(message.get("content"))
    match message.get("role"):
        case "system":
            builder.text(chars)
        case "user" if not message.get("tool_calls"):
            builder.prompt(chars, time)
        case "tool":
            for result in mappings(message.get("tool_messages")) or [message]:
                if result.get("requestor", "assistant") == "assistant":
                    at = seconds(result.get("timestamp"))
                    builder.result(str(result.get("id")), text_chars(result.get("content")), at or time)
        case "assistant":
            _assistant(builder, message, chars, time)


def _assistant(builder: TurnBuilder, message: dict[str, Any], chars: int, time: float | None) -> None:
    usage, calls = mapping(message.get("usage")), mappings(message.get("tool_calls"))
    builder.request(
        Reply(
            prompt_tokens=count(usage.get("prompt_tokens")),
            output_tokens=count(usage.get("completion_tokens")),
            cached_tokens=count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
            output_chars=chars + sum(len(str(call.get("arguments"))) for call in calls),
            end=time,
            llm_s=seconds(message.get("generation_time_seconds")),
            calls={
                str(call.get("id")): Call(name(call.get("name")), call.get("arguments")) for call in calls
            },
        )
    )
