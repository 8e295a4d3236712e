from tests.unit.eval.importers.logs import codex_line, codex_rollout, write_lines


def test_requests_end_with_their_token_count(imported, tmp_path) -> None:
    write_lines(tmp_path / "2026" / "rollout-1.jsonl", codex_rollout())
    (item,) = imported("codex", tmp_path)
    first, second, third = item.turns
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (2000, 1500, 100)
    assert (first.kind, first.llm_s) == ("user", 4.0)
    assert (second.kind, second.tool_name, second.tool_args) == ("tool", "exec_command", '{"cmd": "make"}')
    assert (second.gap_s, second.tool_s, second.kept_tokens) == (2.5, 2.5, 2100)
    assert (third.kind, third.gap_s, third.reset, third.kept_tokens) == ("user", 30.0, True, 599)
    assert (item.model, item.agent_version, item.shared_prefix_tokens) == ("some-codex", "0.50.0", 1500)


def test_a_duration_may_be_logged_after_the_output(imported, tmp_path) -> None:
    lines = codex_rollout()
    end = next(index for index, line in enumerate(lines) if line["payload"].get("type") == "exec_command_end")
    lines[end], lines[end + 1] = lines[end + 1], lines[end]
    (item,) = imported("codex", write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert [turn.tool_s for turn in item.turns] == [None, 2.5, None]


def test_without_counts_tokens_are_estimates(imported, tmp_path) -> None:
    lines = [line for line in codex_rollout() if line["payload"].get("type") != "token_count"]
    (item,) = imported("codex", write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert len(item.turns) == 3
    assert all(turn.prompt_est for turn in item.turns)


def test_a_spawned_thread_has_a_parent(imported, tmp_path) -> None:
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "r-1", "depth": 1}}}
    meta = codex_line("session_meta", 0, id="r-2", source=source)
    write_lines(tmp_path / "rollout-1.jsonl", codex_rollout())
    write_lines(tmp_path / "rollout-2.jsonl", [meta, *codex_rollout()[1:]])
    main, child = imported("codex", tmp_path, "--keep-ids")
    assert (child.subagent, child.parent, child.session_group) == (True, "r-1", main.session_group)
