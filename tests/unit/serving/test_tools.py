"""The names of a request's tools: found in every API's body, bounded, and carried to the scheduler."""

import json

import pytest

from sglang_agentcache.serving.carriers import Carried, attach
from sglang_agentcache.serving.hints import HintError, Hints, parse, unpack
from sglang_agentcache.serving.tools import MAX_NAME_CHARS, MAX_TOOLS, carried_tools, declared_tools

CHAT = [{"type": "function", "function": {"name": name}} for name in ("ls", "cat", "ls")]


@pytest.mark.parametrize(
    "body",
    [
        {"tools": CHAT},
        {"tools": [{"type": "function", "name": "ls"}, {"type": "web_search"}, {"name": "cat"}]},
        {"tools": [{"name": "ls", "input_schema": {}}, {"name": "cat", "type": "custom"}]},
        {"messages": [{"role": "system", "tools": CHAT}, "x"]},
    ],
)
def test_names_in_the_bodies_of_the_apis(body):
    assert declared_tools(body) == ("ls", "cat")


@pytest.mark.parametrize(
    "tools", [None, "ls", {}, ["ls", None, {"function": "ls"}, {"function": {"name": 5}}, {"name": ""}]]
)
def test_junk_declares_nothing(tools):
    assert declared_tools({"tools": tools, "messages": tools}) == ()


def test_too_many_or_too_long_names_declare_nothing():
    def tools(*names):
        return {"tools": [{"name": name} for name in names]}

    many = [f"tool{number}" for number in range(MAX_TOOLS)]
    assert declared_tools(tools(*many)) == tuple(many)
    assert declared_tools(tools(*many, "one more")) == ()
    assert declared_tools(tools("x" * MAX_NAME_CHARS, "ls")) == ("x" * MAX_NAME_CHARS, "ls")
    assert declared_tools(tools("x" * (MAX_NAME_CHARS + 1), "ls")) == ()


def carried(params):
    return carried_tools(params["custom_params"])


@pytest.mark.parametrize("found", [Hints(), Hints(trajectory_id="t")])
def test_names_travel_beside_the_hints(found):
    params = attach({"temperature": 0}, Carried(found=found, source="codex", tools=("ls", "ünï\n")), 1)
    assert carried(params) == ("ls", "ünï\n")
    payload = params["custom_params"]["agentcache"]
    assert all(isinstance(value, str) for value in payload.values())
    assert unpack(payload, "p") == (found, "codex" if found else "")


def test_every_prompt_of_a_batch_has_them():
    params = attach([{}, {}], Carried(found=Hints(trajectory_id="t"), tools=("ls",)), 2)
    assert [carried(each) for each in params] == [("ls",), ("ls",)]


def test_a_client_cannot_send_them():
    with pytest.raises(HintError, match=r"p\.tools: unknown field"):
        parse({"tools": '["ls"]'}, "p")
    sent = {"custom_params": {"agentcache": {"trajectory_id": "t", "tools": '["ls"]'}}}
    assert carried(attach(sent, Carried(), 1)) == ()


@pytest.mark.parametrize(
    "packed", [None, 5, ["ls"], "", "[", "{}", "5", "[" * 100_000, '[5, null, {"name": "ls"}]']
)
def test_junk_that_was_carried_never_raises(packed):
    assert carried_tools({"agentcache": {"tools": packed}}) == ()


@pytest.mark.parametrize("custom_params", [None, "x", {}, {"agentcache": "x"}])
def test_requests_without_a_payload(custom_params):
    assert carried_tools(custom_params) == ()


def test_what_was_carried_is_bounded_again():
    names = carried_tools({"agentcache": {"tools": json.dumps(["x" * 10_000] * 10_000)}})
    assert names == ("x" * MAX_NAME_CHARS,) * MAX_TOOLS
