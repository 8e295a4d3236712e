import pytest

from tests.unit.eval.importers.logs import (
    openhands_sdk,
    openhands_statistics,
    openhands_v0,
    write_json,
    write_lines,
)


def write_v0(form: str, folder):
    events = openhands_v0()
    match form:
        case "array":
            return write_json(folder / "t.json", events)
        case "document":
            return write_json(folder / "t.json", {"trajectory": events})
        case "output":
            return write_lines(folder / "output.jsonl", [{"instance_id": "i", "history": events}])
        case "lines":
            return write_lines(folder / "events.jsonl", events)
    for event in events:
        write_json(folder / "s1" / "events" / f"{event['id']}.json", event)
    write_json(folder / "s1" / "metadata.json", {"title": "t"})
    return folder


@pytest.mark.parametrize("form", ["array", "document", "output", "lines", "folder"])
def test_events_of_version_0(imported, tmp_path, form: str) -> None:
    (item,) = imported("openhands", write_v0(form, tmp_path / "logs"))
    first, second = item.turns
    assert (first.kind, first.prompt_tokens, first.output_tokens, first.llm_s) == ("user", 500, 25, 3.1)
    assert (second.kind, second.tool_name, second.gap_s) == ("tool", "execute_bash", 7.0)
    assert second.tools == [("execute_bash", 2.0), ("execute_bash", 7.0)]
    assert second.tool_args == '{"command": "pytest"}'
    assert (item.model, item.shared_prefix_tokens) == ("some-model", 100)


def test_events_of_the_agent_sdk(imported, tmp_path) -> None:
    folder = tmp_path / "conversation"
    for number, event in enumerate(openhands_sdk()):
        write_json(folder / "events" / f"event-{number:05}-{event['id']}.json", event)
    write_json(
        folder / "base_state.json", {"stats": openhands_statistics(), "agent": {"llm": {"model": "m"}}}
    )
    (item,) = imported("openhands", folder)
    first, second, third = item.turns
    assert (first.prompt_tokens, first.output_tokens, first.prompt_est) == (300, 20, False)
    assert (first.llm_s, second.llm_s) == (1.75, 1.25)
    assert (second.kind, second.tool_name, second.tool_args) == ("tool", "terminal", '{"command": "ls"}')
    assert (second.gap_s, second.cached_tokens, second.kept_tokens) == (0.75, 256, 320)
    assert (third.kind, third.gap_s, third.reset, third.prompt_est) == ("user", 5.0, True, True)
    assert item.model == "m"


def test_counts_in_a_later_event_reach_the_reply(imported, tmp_path) -> None:
    events = openhands_sdk()
    update = {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "stats"}
    events.insert(3, update | {"value": openhands_statistics()})
    (item,) = imported("openhands", write_json(tmp_path / "t.json", events))
    assert [turn.prompt_tokens for turn in item.turns[:2]] == [300, 330]
