import pytest

from tests.unit.eval.importers.logs import (
    claude_call,
    claude_line,
    claude_reply,
    claude_result,
    claude_session,
    iso,
    write_lines,
)

TEXT = {"type": "text", "text": "Fine."}


def test_a_reply_in_several_lines_is_one_request(imported, tmp_path) -> None:
    write_lines(tmp_path / "projects" / "p" / "s-1.jsonl", claude_session())
    (item,) = imported("claude-code", tmp_path / "projects")
    first, second, third = item.turns
    assert (first.kind, first.prompt_tokens, first.new_input_tokens, first.output_tokens) == (
        "user",
        1000,
        1000,
        50,
    )
    assert (first.cached_tokens, first.llm_s, first.gap_s, first.perm) == (900, 4.0, None, "default")
    assert (second.kind, second.prompt_tokens, second.kept_tokens) == ("tool", 1100, 1050)
    assert (second.tool_name, second.tool_args, second.gap_s, second.tool_s) == (
        "Bash",
        '{"command": "pytest -q"}',
        5.5,
        5.25,
    )
    assert second.tools == [("Read", 0.0), ("Bash", 5.5)]
    assert (third.kind, third.gap_s, third.tool_name, third.perm) == ("user", 60.0, None, "plan")
    assert item.shared_prefix_tokens == 900 and item.model == "some-model"
    assert item.permission_modes == ["default", "plan"]


def test_a_tool_that_ends_while_its_call_streams_has_no_gap(imported, tmp_path) -> None:
    usage = (10, 0, 100, 5)
    lines = [
        claude_line("user", 0, "Go"),
        claude_reply(2, "m1", claude_call("t1", "Read"), usage),
        claude_result(2.5, "t1"),
        claude_reply(4, "m1", TEXT, usage),
        claude_reply(6, "m2", TEXT, (5, 110, 20, 5)),
    ]
    (item,) = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))
    assert [(turn.kind, turn.gap_s) for turn in item.turns] == [("user", None), ("tool", 0.0)]


def test_the_logged_text_bounds_a_stub_of_an_output_count(imported, tmp_path) -> None:
    reply = claude_reply(2, "m1", {"type": "text", "text": "w" * 400}, (10, 0, 100, 1))
    path = write_lines(tmp_path / "s-1.jsonl", [claude_line("user", 0, "Go"), reply])
    assert imported("claude-code", path)[0].turns[0].output_tokens == 100


@pytest.mark.parametrize("boundary", [True, False])
def test_compaction_keeps_only_the_shared_prefix(imported, tmp_path, boundary: bool) -> None:
    mark = claude_line("user", 20, "Summary of the work", isCompactSummary=True)
    if boundary:
        mark = {"type": "system", "subtype": "compact_boundary", "sessionId": "s-1"}
    lines = [
        claude_line("user", 0, "Go"),
        claude_reply(2, "m1", TEXT, (10, 900, 5000, 5)),
        mark,
        claude_line("user", 30, "Continue"),
        claude_reply(33, "m2", TEXT, (10, 900, 4900, 5)),
    ]
    (item,) = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))
    assert item.turns[1].reset
    assert item.turns[1].kept_tokens == 900 == item.shared_prefix_tokens


def test_sub_agents_of_both_kinds_are_trajectories_of_the_session(imported, tmp_path) -> None:
    usage = (10, 0, 100, 5)
    side = {"isSidechain": True}
    lines = [
        claude_line("user", 0, "Go", uuid="a"),
        claude_reply(2, "m1", claude_call("t1", "Task"), usage, uuid="b", parentUuid="a"),
        claude_line("user", 3, "Search one", uuid="c", parentUuid=None, **side),
        claude_line("user", 3, "Search two", uuid="d", parentUuid=None, **side),
        claude_reply(5, "m2", TEXT, usage, uuid="e", parentUuid="c", **side),
        claude_reply(6, "m3", TEXT, usage, uuid="f", parentUuid="d", **side),
        claude_result(9, "t1", uuid="g", parentUuid="b"),
        claude_reply(11, "m4", TEXT, (10, 100, 20, 5), uuid="h", parentUuid="g"),
    ]
    write_lines(tmp_path / "p" / "s-1.jsonl", lines)
    agent = {"agentId": "x9", "isSidechain": True}
    own_file = [claude_line("user", 4, "Read", **agent), claude_reply(6, "m5", TEXT, usage, **agent)]
    write_lines(tmp_path / "p" / "s-1" / "subagents" / "agent-x9.jsonl", own_file)
    items = imported("claude-code", tmp_path / "p", "--keep-ids")
    names = [(item.trajectory_id, item.subagent, item.parent, len(item.turns)) for item in items]
    assert sorted(names, key=str) == [
        ("s-1", False, None, 2),
        ("s-1/c", True, "s-1", 1),
        ("s-1/d", True, "s-1", 1),
        ("s-1/x9", True, "s-1", 1),
    ]
    assert {item.session_group for item in items} == {"s-1"}


def test_a_copied_history_is_not_counted_twice(imported, tmp_path) -> None:
    lines = claude_session()
    write_lines(tmp_path / "p" / "a.jsonl", lines)
    resumed = [line | {"sessionId": "s-2"} if "sessionId" in line else line for line in lines]
    more = [
        claude_line("user", 90, "And?", sessionId="s-2"),
        claude_reply(95, "m9", TEXT, (50, 1200, 9, 3), sessionId="s-2"),
    ]
    write_lines(tmp_path / "p" / "b.jsonl", [*resumed, *more])
    first, second = imported("claude-code", tmp_path / "p")
    assert [len(first.turns), len(second.turns)] == [3, 1]
    assert second.turns[0].new_input_tokens == 1259
    assert second.shared_prefix_tokens == 900


@pytest.mark.parametrize(
    ("tool", "block"),
    [
        ("AskUserQuestion", {}),
        ("Bash", {"is_error": True, "content": "The user doesn't want to proceed with this tool use."}),
    ],
)
def test_waiting_for_a_person_is_marked(imported, tmp_path, tool: str, block: dict) -> None:
    lines = [
        claude_line("user", 0, "Go"),
        claude_reply(2, "m1", claude_call("t1", tool), (10, 0, 100, 5)),
        claude_result(60, "t1", block=block),
        claude_reply(66, "m2", TEXT, (5, 110, 20, 5)),
    ]
    (item,) = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))
    assert [turn.human for turn in item.turns] == [False, True]


def test_messages_that_no_model_wrote_are_no_requests(imported, tmp_path) -> None:
    error = claude_reply(3, "e1", TEXT, (0, 0, 0, 0))
    error["message"]["model"] = "<synthetic>"
    lines = [claude_line("user", 0, "Go"), error, claude_reply(9, "m1", TEXT, (10, 0, 100, 5))]
    (item,) = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))
    assert len(item.turns) == 1


def test_a_history_with_the_time_of_its_copy_has_no_times(imported, tmp_path) -> None:
    lines = [line | {"timestamp": iso(500)} for line in claude_session()[:-2]]
    lines += [claude_line("user", 520, "Next"), claude_reply(524, "m8", TEXT, (10, 1100, 20, 5))]
    (item,) = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))
    assert [(turn.gap_s, turn.llm_s, turn.t_s) for turn in item.turns[:2]] == [(None, None, None)] * 2
    assert (item.turns[2].gap_s, item.turns[2].llm_s) == (20.0, 4.0)


def test_a_refused_call_stays_known_when_the_person_prompts(imported, tmp_path) -> None:
    refusal = {"is_error": True, "content": "The user doesn't want to take this action right now."}
    lines = [
        claude_line("user", 0, "Go"),
        claude_reply(2, "m1", claude_call("t1", "Bash", command="rm a"), (10, 0, 100, 5)),
        claude_result(8, "t1", block=refusal),
        claude_result(8, "t1", block=refusal),
        claude_line("user", 30, "Keep the file"),
        claude_reply(33, "m2", TEXT, (5, 110, 20, 5)),
    ]
    turn = imported("claude-code", write_lines(tmp_path / "s-1.jsonl", lines))[0].turns[1]
    assert (turn.kind, turn.tool_name, turn.human, turn.tools, turn.gap_s) == (
        "user",
        "Bash",
        True,
        None,
        28.0,
    )
