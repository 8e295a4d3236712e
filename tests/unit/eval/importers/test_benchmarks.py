"""Benchmarks that write one JSON document: tau2-bench, mini-swe-agent, SWE-agent."""

import pytest

from tests.unit.eval.importers.logs import mini_v1, mini_v2, swe_agent_trajectory, tau2_results, write_json


def test_tau2_sees_the_conversation_as_the_agent_does(imported, tmp_path) -> None:
    timed, bare = imported("tau2", write_json(tmp_path / "r.json", tau2_results()))
    assert [turn.kind for turn in timed.turns] == ["user", "tool", "user"]
    assert [turn.gap_s for turn in timed.turns] == [None, 0.4, 3.0]
    assert [turn.prompt_tokens for turn in timed.turns] == [1200, 1260, 1310]
    assert (timed.turns[1].tool_name, timed.turns[1].tool_args) == ("get_order", '{"order": "A7"}')
    assert timed.simulated_user and timed.model == "some-model"
    assert timed.shared_prefix_tokens == 100 and timed.shared_prefix_id == bare.shared_prefix_id


def test_tau2_without_counts_or_times(imported, tmp_path) -> None:
    (turn,) = imported("tau2", write_json(tmp_path / "r.json", tau2_results()))[1].turns
    assert (turn.prompt_tokens, turn.output_tokens, turn.prompt_est) == (120, 10, True)
    assert turn.gap_s is None and turn.llm_s is None and turn.t_s is None


def test_mini_swe_agent_1_has_only_whole_seconds_between_requests(imported, tmp_path) -> None:
    (item,) = imported("mini-swe-agent", write_json(tmp_path / "django-1.traj.json", mini_v1()), "--keep-ids")
    first, second = item.turns
    assert item.trajectory_id == "django-1" and item.model == "some-model"
    assert (first.kind, first.prompt_tokens, first.output_tokens, first.cached_tokens) == ("user", 60, 20, 8)
    assert (second.kind, second.tool_name, second.tool_args) == ("tool", "bash", '{"command": "ls src"}')
    assert (second.gap_s, second.interval_s, second.kept_tokens) == (None, 7.0, 80)
    assert [turn.t_s for turn in item.turns] == [0.0, 7.0]


def test_mini_swe_agent_corrects_a_reply_without_an_action_itself(imported, tmp_path) -> None:
    document = mini_v1()
    document["messages"][2]["content"] = "I would look at the sources."
    (item,) = imported("mini-swe-agent", write_json(tmp_path / "a.traj.json", document))
    assert (item.turns[1].kind, item.turns[1].tool_name) == ("tool", None)


def test_mini_swe_agent_may_be_a_list_alone(imported, tmp_path) -> None:
    (item,) = imported("mini-swe-agent", write_json(tmp_path / "a.traj.json", mini_v1()["messages"]))
    assert [turn.prompt_tokens for turn in item.turns] == [60, 95]


def test_mini_swe_agent_2_has_the_time_of_every_result(imported, tmp_path) -> None:
    (item,) = imported("mini-swe-agent", write_json(tmp_path / "a.traj.json", mini_v2()))
    second = item.turns[1]
    assert second.tools == [("bash", 1.0), ("bash", 5.5)]
    assert (second.gap_s, second.interval_s, second.tool_args) == (5.5, None, '{"command": "make test"}')
    assert all(turn.prompt_est for turn in item.turns)


@pytest.mark.parametrize("queries", [False, True])
def test_swe_agent_steps_become_turns(imported, tmp_path, queries: bool) -> None:
    (item,) = imported("swe-agent", write_json(tmp_path / "a.traj", swe_agent_trajectory(queries)))
    first, second, third = item.turns
    assert [turn.gap_s for turn in item.turns] == [None, 0.5, 1.25]
    assert (second.tool_name, second.tool_args) == ("find_file", '{"command": "find_file a.py"}')
    assert (first.prompt_tokens, first.output_tokens) == (75, 10)
    assert (second.prompt_tokens, second.kept_tokens) == (105, 85)
    if queries:
        # The observation of the first step left the prompt: what follows it is new too.
        assert (third.prompt_tokens, third.kept_tokens) == (197, 85)
    else:
        assert (third.prompt_tokens, third.kept_tokens) == (215, 115)
    assert item.shared_prefix_tokens == 50 and item.agent_version == "1.1.0"
