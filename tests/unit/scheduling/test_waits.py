"""What the scheduler notes of a finished request and of a return, on SGLang's real cache and requests."""

import json

import pytest

pytest.importorskip("sglang.srt.managers.schedule_batch")

from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_TOKEN
from transformers import AutoTokenizer

from eval.tiny_model import TinyModel, write_tiny_model
from sglang_agentcache.config import AgentCacheConfig
from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.scheduling.call_log import CallLog
from sglang_agentcache.scheduling.tool_calls import ToolCallReader
from sglang_agentcache.scheduling.waits import Waits
from sglang_agentcache.serving.carriers import Carried, attach
from sglang_agentcache.serving.hints import Hints
from tests.support.serving import Server

CALL = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory, TinyModel())
    return AutoTokenizer.from_pretrained(directory)


def server(policy: str) -> Server:
    return Server("python", 1, 2048, AgentCacheConfig.parse(policy, None, page_size=1))


def serve(
    made: Server, tokenizer, rid: str, prompt: str, output: str, hints: Hints | None = None, tools=("ls",)
):
    """A request of trajectory "t" that writes just this and then ends its turn."""
    ids = [*tokenizer.encode(output, add_special_tokens=False), tokenizer.eos_token_id or 0]
    req = made.request(rid, tokenizer.encode(prompt, add_special_tokens=False), output_tokens=len(ids))
    carried = Carried(declared=(hints or Hints()).over(Hints(trajectory_id="t")), tools=tools)
    req.sampling_params.custom_params = attach({}, carried, 1)["custom_params"]
    made.serve(req, ids)
    trajectory = made.agent.table.of_request(rid) or next(iter(made.agent.table._by_key.values()))
    return req, trajectory


@pytest.mark.parametrize("policy", ["predictive", "convex"])
def test_calls_of_the_output_and_how_long_they_took(tokenizer, policy, tmp_path):
    made = server(policy)
    log = CallLog(tmp_path / "calls.jsonl", 1 << 20)
    waits = Waits(made.agent, ToolCallReader(tokenizer, "qwen"), log)
    _, trajectory = serve(made, tokenizer, "one", "list it", CALL)
    assert trajectory.hints.tool_calls == (ToolCall("ls", "{}"),)
    _, trajectory = serve(made, tokenizer, "two", f"list it{CALL} a", "done")
    # Here every output ends by its length.
    assert trajectory.hints.tool_calls is None
    assert waits.state()["tools"]["ls"]["count"] == 1
    log.close()
    (line,) = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    assert (line["name"], line["censored"]) == ("ls", False)


def test_a_wait_that_is_given_up_is_logged_as_censored(tokenizer, tmp_path):
    made = server("rr")
    log = CallLog(tmp_path / "calls.jsonl", 1 << 20)
    waits = Waits(made.agent, ToolCallReader(tokenizer, "qwen"), log)
    _, trajectory = serve(made, tokenizer, "one", "list it", CALL)
    made.agent.complete(trajectory.key)
    assert waits.state()["tools"] == {}, "nobody knows how long it would have taken"
    log.close()
    (line,) = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    assert (line["name"], line["censored"]) == ("ls", True)


def test_a_client_that_says_is_believed(tokenizer):
    made = server("convex")
    Waits(made.agent, ToolCallReader(tokenizer, "qwen"), None)
    _, trajectory = serve(made, tokenizer, "one", "list it", CALL, Hints(tool_calls=(ToolCall("mine"),)))
    assert trajectory.hints.tool_calls == (ToolCall("mine"),)


def test_without_a_reader_the_wait_is_unknown(tokenizer):
    made = server("convex")
    waits = Waits(made.agent, None, None)
    _, trajectory = serve(made, tokenizer, "one", "list it", CALL)
    assert trajectory.hints.tool_calls is None
    serve(made, tokenizer, "two", f"list it{CALL} a", "done")
    assert waits.state()["tools"] == {}
    assert waits.state()["tool_call_parser"] is None


def test_a_policy_that_predicts_nothing_pays_nothing_unless_calls_are_logged(tokenizer, tmp_path):
    reader = ToolCallReader(tokenizer, "qwen")
    made = server("rr")
    assert Waits(made.agent, reader, None).state()["predictor"] is None
    assert made.agent.tool_calls_of is None
    log = CallLog(tmp_path / "calls.jsonl", 1 << 20)
    Waits(made.agent, reader, log)
    assert made.agent.tool_calls_of is not None
    log.close()


def test_how_the_output_ended(tokenizer):
    made = server("convex")
    waits = Waits(made.agent, ToolCallReader(tokenizer, "qwen"), None)
    req, _ = serve(made, tokenizer, "one", "list it", "I shall")
    assert isinstance(req.finished_reason, FINISH_LENGTH)
    assert waits.tool_calls_of(req) is None
    req.finished_reason = FINISH_MATCHED_TOKEN(matched=req.output_ids[-1])
    assert waits.tool_calls_of(req) == ()
    req.finished_reason = None
    assert waits.tool_calls_of(req) is None


def test_a_call_of_a_tool_that_was_not_declared(tokenizer):
    made = server("convex")
    Waits(made.agent, ToolCallReader(tokenizer, "qwen"), None)
    _, trajectory = serve(made, tokenizer, "one", "list it", CALL, tools=("other",))
    assert trajectory.hints.tool_calls is None
