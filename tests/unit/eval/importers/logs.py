"""Small invented logs, in the form in which the tools write them."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def iso(second: float) -> str:
    """A log's time stamp, so many seconds after an arbitrary moment."""
    moment = datetime.fromtimestamp(1_750_000_000 + second, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Write JSON lines; text is written as it is (damaged lines)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def write_json(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def claude_line(kind: str, second: float, content: object, **more: Any) -> Json:
    message = {"role": kind, "content": content} | more.pop("message", {})
    line = {
        "type": kind,
        "timestamp": iso(second),
        "sessionId": "s-1",
        "version": "2.0.1",
        "message": message,
    }
    return line | {"isSidechain": False} | more


def claude_reply(
    second: float, name: str, block: Json, usage: tuple[int, int, int, int], **more: Any
) -> Json:
    """``usage``: input, cache read, cache written, output."""
    keys = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    message = {"id": name, "model": "some-model", "usage": dict(zip(keys, usage, strict=True))}
    return claude_line("assistant", second, [block], message=message, **more)


def claude_call(name: str, tool: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def claude_result(second: float, name: str, text: str = "done", **more: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": name, "content": text} | more.pop("block", {})
    return claude_line("user", second, [block], **more)


def claude_session() -> list[Json]:
    """Two parallel tools, one of which ends while the reply still streams; then a person's prompt."""
    text = {"type": "text", "text": "Let me look."}
    first = (10, 900, 90, 1)
    return [
        {"type": "summary", "summary": "a title", "leafUuid": "u"},
        claude_line("user", 0, "Please fix the parser", permissionMode="default"),
        claude_reply(2, "m1", text, first),
        claude_reply(3, "m1", claude_call("t1", "Read", file_path="parser.py"), first),
        claude_result(3.2, "t1", "x" * 40),
        claude_reply(4, "m1", claude_call("t2", "Bash", command="pytest -q"), (10, 900, 90, 50)),
        claude_result(9.5, "t2", toolUseResult={"durationMs": 5250}),
        claude_reply(11, "m2", text, (20, 1000, 80, 30)),
        claude_line("user", 71, "Thanks, now the docs", permissionMode="plan"),
        claude_reply(75, "m3", text, (30, 1100, 50, 12)),
    ]


def codex_line(kind: str, second: float, **payload: Any) -> Json:
    return {"timestamp": iso(second), "type": kind, "payload": payload}


def codex_item(second: float, kind: str, **payload: Any) -> Json:
    return codex_line("response_item", second, **({"type": kind} | payload))


def codex_message(second: float, role: str, text: str) -> Json:
    return codex_item(second, "message", role=role, content=[{"type": "input_text", "text": text}])


def codex_count(second: float, total: int, prompt: int, cached: int, output: int) -> Json:
    last = {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": output}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
    return codex_line("event_msg", second, type="token_count", info=info)


def codex_rollout() -> list[Json]:
    """A command of 2.5 s, a repeated count, an answer, a person's prompt after a compaction."""
    duration = {"secs": 2, "nanos": 500_000_000}
    return [
        codex_line("session_meta", 0, id="r-1", cli_version="0.50.0"),
        codex_message(0, "developer", "rules"),
        codex_message(1, "user", "Why is the build slow?"),
        codex_line("turn_context", 1, model="some-codex", approval_policy="never"),
        codex_item(4, "reasoning", summary=[]),
        codex_item(5, "function_call", name="exec_command", arguments='{"cmd": "make"}', call_id="c1"),
        codex_count(5.1, 2100, 2000, 1500, 100),
        codex_line("event_msg", 7.4, type="exec_command_end", call_id="c1", duration=duration),
        codex_item(7.5, "function_call_output", call_id="c1", output="ok"),
        codex_message(7.55, "user", "<subagent_notification>done</subagent_notification>"),
        codex_count(7.6, 2100, 2000, 1500, 100),
        codex_message(10, "assistant", "It links everything twice."),
        codex_count(10.1, 4350, 2200, 2000, 50),
        codex_line("compacted", 20, message="short"),
        codex_message(40, "user", "Fix it"),
        codex_message(45, "assistant", "Fixed."),
        codex_count(45.1, 5000, 600, 500, 50),
    ]


def tau2_results() -> Json:
    """One simulation with a user that also calls a tool, one without token counts or times."""
    call = {"id": "k1", "name": "get_order", "arguments": {"order": "A7"}, "requestor": "assistant"}
    own = {"id": "k2", "name": "toggle_wifi", "arguments": {}, "requestor": "user"}
    usage = {"prompt_tokens": 1200, "completion_tokens": 40}
    timed = [
        {"role": "assistant", "content": "Hello, what can I do?", "timestamp": iso(0)},
        {"role": "user", "content": "Where is my order?", "timestamp": iso(3)},
        {"role": "assistant", "tool_calls": [call], "usage": usage, "timestamp": iso(5)},
        {"role": "tool", "id": "k1", "requestor": "assistant", "content": "{}", "timestamp": iso(5.4)},
        {
            "role": "assistant",
            "content": "On its way.",
            "usage": usage | {"prompt_tokens": 1260},
            "timestamp": iso(8),
        },
        {"role": "user", "tool_calls": [own], "timestamp": iso(9)},
        {"role": "tool", "id": "k2", "requestor": "user", "content": "on", "timestamp": iso(9.1)},
        {"role": "user", "content": "Thanks", "timestamp": iso(11)},
        {
            "role": "assistant",
            "content": "Bye.",
            "usage": usage | {"prompt_tokens": 1310},
            "timestamp": iso(12),
        },
    ]
    bare = [{"role": "user", "content": "x" * 80}, {"role": "assistant", "content": "y" * 40}]
    environment = {"domain_name": "shop", "policy": "p" * 400}
    return {
        "info": {"environment_info": environment, "agent_info": {"llm": "some-model"}},
        "tasks": [{"id": "7"}],
        "simulations": [
            {"id": "a", "task_id": "7", "start_time": iso(0), "messages": timed},
            {"id": "b", "task_id": "8", "messages": bare},
        ],
    }


def mini_v1() -> Json:
    def reply(command: str, created: int, prompt: int) -> Json:
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 8},
        }
        content = f"Next.\n```bash\n{command}\n```"
        return {
            "role": "assistant",
            "content": content,
            "extra": {"response": {"created": created, "usage": usage}},
        }

    return {
        "info": {"mini_version": "1.9", "config": {"model": {"model_name": "some-model"}}},
        "messages": [
            {"role": "system", "content": "s" * 80},
            {"role": "user", "content": "u" * 120},
            reply("ls src", 1000, 60),
            {"role": "user", "content": "<returncode>0</returncode>"},
            reply("cat src/a.py", 1007, 95),
        ],
    }


def mini_v2() -> Json:
    def reply(second: float, *commands: str) -> Json:
        actions = [{"command": text, "tool_call_id": f"c-{second}-{i}"} for i, text in enumerate(commands)]
        return {"role": "assistant", "content": "", "extra": {"actions": actions, "timestamp": second}}

    def result(second: float, call: str) -> Json:
        return {"role": "tool", "tool_call_id": call, "content": "out", "extra": {"timestamp": second}}

    return {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {},
        "messages": [
            {"role": "system", "content": "s" * 80},
            {"role": "user", "content": "u" * 120},
            reply(10.0, "make", "make test"),
            result(11.0, "c-10.0-0"),
            result(15.5, "c-10.0-1"),
            reply(20.0, "git diff"),
        ],
    }


def swe_agent_trajectory(queries: bool = False) -> Json:
    """Three steps; with ``queries`` the second prompt is shown, where an old observation was elided."""
    steps: list[Json] = [
        {"action": "find_file a.py", "response": "r" * 40, "observation": "o" * 80, "execution_time": 0.5},
        {"action": "open a.py", "response": "r" * 40, "observation": "o" * 400, "execution_time": 1.25},
        {"action": "submit", "response": "r" * 20, "observation": ""},
    ]
    head = [{"role": "system", "content": "s" * 200}, {"role": "user", "content": "u" * 100}]
    if queries:
        said = {"role": "assistant", "content": "r" * 40}
        seen = {"role": "user", "content": "o" * 80}
        gone = {"role": "user", "content": "(elided)"}
        steps[0]["query"] = head
        steps[1]["query"] = [*head, said, seen]
        steps[2]["query"] = [*head, said, gone, said, {"role": "user", "content": "o" * 400}]
    return {"trajectory": steps, "history": head, "info": {"swe_agent_version": "1.1.0"}}


def openhands_v0() -> list[Json]:
    def reply(number: int, second: float, call: str, prompt: int) -> Json:
        usage = {"prompt_tokens": prompt, "completion_tokens": 25}
        response = {"id": f"resp-{prompt}", "model": "some-model", "usage": usage}
        metadata = {"function_name": "execute_bash", "tool_call_id": call, "model_response": response}
        arguments = {"command": "pytest", "thought": "let me test"}
        common = {"id": number, "source": "agent", "timestamp": iso(second)}
        return common | {"action": "run", "args": arguments, "tool_call_metadata": metadata}

    def result(number: int, second: float, cause: int) -> Json:
        common = {"id": number, "source": "agent", "timestamp": iso(second)}
        return common | {"observation": "run", "content": "passed", "cause": cause}

    return [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "s" * 400, "tools": []}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": "Test it"}, "timestamp": iso(0)},
        {"id": 2, "source": "user", "action": "recall", "args": {"query": "Test it"}, "timestamp": iso(0)},
        {"id": 3, "source": "environment", "observation": "recall", "content": "", "cause": 2},
        reply(4, 3, "c1", 500),
        reply(5, 3.1, "c2", 500),
        result(6, 5.1, 4),
        result(7, 10.1, 5),
        reply(8, 12, "c3", 560),
    ]


def openhands_sdk() -> list[Json]:
    def event(number: int, kind: str, source: str, second: float, **more: Any) -> Json:
        return {"id": f"e{number}", "kind": kind, "source": source, "timestamp": iso(second)} | more

    call = {"id": "c1", "name": "terminal", "arguments": '{"command": "ls"}'}
    said = {"role": "user", "content": [{"type": "text", "text": "List the files"}]}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "There are two."}]}
    action = {"tool_name": "terminal", "tool_call_id": "c1", "tool_call": call, "llm_response_id": "r1"}
    content = {"content": [{"type": "text", "text": "a b"}]}
    return [
        event(
            0, "SystemPromptEvent", "agent", 0, system_prompt={"type": "text", "text": "s" * 400}, tools=[]
        ),
        event(1, "MessageEvent", "user", 0, llm_message=said),
        event(2, "ActionEvent", "agent", 2, thought=[], **action),
        event(3, "ObservationEvent", "environment", 2.75, tool_call_id="c1", observation=content),
        event(4, "MessageEvent", "agent", 4, llm_message=answer, llm_response_id="r2"),
        event(5, "Condensation", "environment", 5, summary="short"),
        event(6, "MessageEvent", "user", 9, llm_message=said),
        event(7, "MessageEvent", "agent", 11, llm_message=answer, llm_response_id="r3"),
    ]


def openhands_statistics() -> Json:
    usages = [
        {"response_id": "r1", "prompt_tokens": 300, "completion_tokens": 20, "cache_read_tokens": 0},
        {"response_id": "r2", "prompt_tokens": 330, "completion_tokens": 10, "cache_read_tokens": 256},
    ]
    latencies = [{"response_id": "r1", "latency": 1.75}]
    return {"usage_to_metrics": {"agent": {"token_usages": usages, "response_latencies": latencies}}}


def mooncake_lines() -> list[Json]:
    """Blocks of 512: a conversation of two requests, another that shares its first block, a loner."""

    def line(timestamp: int, length: int, *blocks: int) -> Json:
        return {"timestamp": timestamp, "input_length": length, "output_length": 90, "hash_ids": list(blocks)}

    return [
        line(0, 1100, 1, 2, 3),
        line(500, 700, 1, 4),
        line(3000, 1700, 1, 2, 5, 6),
        line(3000, 400, 7),
    ]
