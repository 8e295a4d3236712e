"""Our side of the HTTP process against SGLang's own request, message and control classes."""

import asyncio
import importlib
import json
from typing import Annotated, Any

import msgspec
import pytest
from fastapi import Body, FastAPI, Request
from fastapi.testclient import TestClient

http_server = pytest.importorskip("sglang.srt.entrypoints.http_server")

from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest  # noqa: E402
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.communicator import FanOutCommunicator  # noqa: E402
from sglang.srt.managers.io_struct import (  # noqa: E402
    DumperControlReqInput,
    DumperControlReqOutput,
    GenerateReqInput,
    SetInternalStateReq,
)
from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.utils.auth import AuthLevel, add_api_key_middleware  # noqa: E402

from sglang_agentcache.disagg.channel import SECRET_HEADER  # noqa: E402
from sglang_agentcache.disagg.messages import ENDED, MAX_BATCH_BYTES, Ended, parse_batch  # noqa: E402
from sglang_agentcache.disagg.settings import SECRET  # noqa: E402
from sglang_agentcache.patches import LAUNCHER_PATCHES, load  # noqa: E402
from sglang_agentcache.patches.fingerprint import PatchRefused, verify  # noqa: E402
from sglang_agentcache.serving import http  # noqa: E402
from sglang_agentcache.serving.hints import COMPLETE, Completion, Hints, pack  # noqa: E402
from sglang_agentcache.trajectory.identity import Namespace, Resolved, TrajectoryKey, resolve  # noqa: E402

HTTP_PATCHES = [name for name in LAUNCHER_PATCHES if name != "server_args_check"]


def scheduler_sees(obj: GenerateReqInput) -> list[Resolved]:
    """What the scheduler resolves for each request of ``obj``, after SGLang's stricter transport, msgpack."""
    obj.normalize_batch_and_arguments()
    seen = []
    for item in [obj] if obj.is_single else [obj[index] for index in range(len(obj.rid))]:
        params = SamplingParams(**item.sampling_params)
        wire = msgspec.msgpack.encode(params, enc_hook=io_struct.enc_hook)
        params = msgspec.msgpack.decode(wire, type=SamplingParams, dec_hook=io_struct.dec_hook)
        seen.append(
            resolve(params.custom_params, item.session_id, item.kv_hints, item.extra_key, item.cache_salt)
        )
    return seen


def endpoints() -> FastAPI:
    """The smallest app with SGLang's request classes whose endpoints do what our hooks do in SGLang's."""
    app = FastAPI()
    app.exception_handlers.update(http_server.app.exception_handlers)

    def answer(obj: GenerateReqInput, request: Request) -> list[Any]:
        http.pack_into(obj, request)
        return [[seen.key, seen.source, repr(seen.hints)] for seen in scheduler_sees(obj)]

    @app.post("/generate")
    async def generate(obj: Annotated[GenerateReqInput, Body()], request: Request) -> list[Any]:
        http.admit_generate(obj, request)
        return answer(obj, request)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatCompletionRequest, raw_request: Request) -> list[Any]:
        await http.admit_openai(raw_request)
        params = request.to_sampling_params([], {}, None)
        return answer(
            GenerateReqInput(
                text="x",
                sampling_params=params,
                session_id=request.session_id,
                extra_key=request.extra_key,
                cache_salt=request.cache_salt,
            ),
            raw_request,
        )

    @app.post("/v1/responses")
    async def responses(request: ResponsesRequest, raw_request: Request) -> list[Any]:
        await http.admit_openai(raw_request, response_id=request.request_id)
        return answer(GenerateReqInput(text="x", session_id=request.session_id), raw_request)

    @app.post("/v1/messages")
    async def messages(request: AnthropicMessagesRequest, raw_request: Request) -> list[Any]:
        await http.admit_openai(raw_request)
        return answer(GenerateReqInput(text="x"), raw_request)

    return app


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(endpoints())


MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x", "sampling_params": {}},
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES},
    "/v1/responses": {"model": "m", "input": "hello"},
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 5},
}


def declaring(path: str, payload: object) -> dict[str, Any]:
    carrier = {"custom_params": {"agentcache": payload}}
    return BODIES[path] | ({"sampling_params": carrier} if path == "/generate" else carrier)


def key(trajectory_id: str, extra_key: str | None = None, cache_salt: str | None = None) -> list[Any]:
    return [[extra_key, cache_salt], trajectory_id]


@pytest.mark.parametrize("path", BODIES)
class TestEveryEndpoint:
    def test_nothing_carried(self, client, path):
        assert client.post(path, json=BODIES[path]).json() == [[None, "", repr(Hints())]]

    def test_headers(self, client, path):
        headers = {"X-Claude-Code-Session-Id": "s", "X-Claude-Code-Agent-Id": "a"}
        found, source, hints = client.post(path, json=BODIES[path], headers=headers).json()[0]
        assert (found, source) == (key('["s","a"]'), "claude-code")
        assert "parent_id='s'" in hints

    def test_payload_with_nested_arguments(self, client, path):
        payload = {"trajectory_id": "t", "tool_calls": [{"name": "bash", "arguments": {"a": {"b": [1]}}}]}
        found, source, hints = client.post(path, json=declaring(path, payload)).json()[0]
        assert (found, source) == (key("t"), "hint")
        assert '{"a":{"b":[1]}}' in hints

    def test_payload_without_an_id_joins_the_header(self, client, path):
        response = client.post(path, json=declaring(path, {"final": True}), headers={"x-session-id": "o"})
        found, source, hints = response.json()[0]
        assert (found, source) == (key("o"), "opencode")
        assert "final=True" in hints

    @pytest.mark.parametrize("field", ["final", "trajectory_id", "tool_calls", "expected_idle_s", "unknown"])
    def test_a_malformed_payload_is_refused_by_name(self, client, path, field):
        response = client.post(path, json=declaring(path, {field: {"bad": 1}}))
        assert response.status_code == 400
        assert f"custom_params.agentcache.{field}: " in response.text

    def test_malformed_headers_are_ignored(self, client, path):
        headers = {"x-dynamo-session-id": "x" * 300, "x-codex-turn-metadata": "{", "x-correlation-id": " "}
        assert client.post(path, json=BODIES[path], headers=headers).json()[0][1] == ""


def test_body_fields(client):
    body = BODIES["/v1/chat/completions"] | {"prompt_cache_key": "p"}
    assert client.post("/v1/chat/completions", json=body).json()[0][:2] == [key("p"), "prompt-cache-key"]
    body |= {"session_id": "s", "extra_key": "e", "cache_salt": "c"}
    assert client.post("/v1/chat/completions", json=body).json()[0][:2] == [key("s", "e", "c"), "session_id"]
    body = BODIES["/v1/messages"] | {"metadata": {"user_id": "user_1_account__session_77"}}
    assert client.post("/v1/messages", json=body).json()[0][:2] == [key("77"), "anthropic-user"]


def test_chained_responses(client):
    body = BODIES["/v1/responses"]

    def send(response: str, previous: str) -> list[Any]:
        chained = body | {"request_id": response, "previous_response_id": previous}
        return client.post("/v1/responses", json=chained).json()[0][:2]

    assert send("resp_b", "resp_a") == [key("resp_a"), "previous-response"]
    assert send("resp_c", "resp_b") == [key("resp_a"), "previous-response"]


def test_sessions_of_sglang(client):
    body = BODIES["/generate"] | {"session_params": {"id": "native"}}
    assert client.post("/generate", json=body).json()[0][:2] == [key("native"), "session_id"]


def envelope(payload: object, version: str = "1") -> dict[str, Any]:
    action = {
        "action_id": "1",
        "action_type": "agentcache.trajectory",
        "action_version": version,
        "payload": payload,
    }
    return {"protocol_version": "1", "message_id": "m", "actions": [action]}


def test_kv_hints(client):
    body = declaring("/generate", {"trajectory_id": "c"}) | {"kv_hints": envelope({"trajectory_id": "k"})}
    assert client.post("/generate", json=body).json()[0][:2] == [key("k"), "hint"]
    for hints, field in (
        (envelope({"trajectory_id": 1}), "kv_hints.actions[0].payload.trajectory_id"),
        (envelope("x"), "kv_hints"),
        (envelope({}, "2"), "kv_hints.actions[0].action_version"),
    ):
        response = client.post("/generate", json=BODIES["/generate"] | {"kv_hints": hints})
        assert response.status_code == 400
        assert field in response.text


def test_a_batch(client):
    good = {"custom_params": {"agentcache": {"trajectory_id": "a"}}}
    bad = {"custom_params": {"agentcache": {"expected_idle_s": -1}}}
    body = {"text": ["x", "y"], "sampling_params": [good, {}]}
    seen = client.post("/generate", json=body, headers={"x-session-id": "s"}).json()
    assert [item[:2] for item in seen] == [[key("a"), "hint"], [None, ""]]
    response = client.post("/generate", json=body | {"sampling_params": [good, bad]})
    assert response.status_code == 400
    assert "sampling_params[1].custom_params.agentcache.expected_idle_s" in response.text


def test_parallel_samples_belong_to_one_trajectory(client):
    body = {"text": "x", "sampling_params": {"n": 3}}
    seen = client.post("/generate", json=body, headers={"x-session-id": "s"}).json()
    assert [item[0] for item in seen] == [key("s")] * 3


@pytest.mark.parametrize("payload", ["junk", {"tool_calls": [[]]}, {"final": "yes"}])
def test_the_engine_never_sends_a_malformed_payload(payload):
    obj = GenerateReqInput(text="x", sampling_params={"custom_params": {"agentcache": payload, "k": 1}})
    http.pack_into(obj, None)
    assert obj.sampling_params == {"custom_params": {"k": 1}}


def test_the_engine_may_send_nested_tool_calls():
    calls = [{"name": "bash", "arguments": {"a": {"b": 1}}}]
    obj = GenerateReqInput(text="x", sampling_params={"custom_params": {"agentcache": {"tool_calls": calls}}})
    http.pack_into(obj, None)
    assert scheduler_sees(obj)[0].hints.tool_calls[0].arguments == '{"a":{"b":1}}'


# ---- patches ----


@pytest.mark.parametrize("name", HTTP_PATCHES)
def test_patches_fit_the_installed_sglang(name):
    module = importlib.import_module(f"sglang_agentcache.patches.{name}")
    if not module.PATCH.applies():
        pytest.skip(f"SGLang serves without this target: {module.PATCH.needs} is not installed")
    verify(module.PATCH)
    assert "SGLang 0.5.23" in module.__doc__


def test_a_changed_upstream_is_refused_by_name():
    import dataclasses

    patch = load(["http_generate"])[0]
    with pytest.raises(PatchRefused, match=r"serve_generate_request: its source differs"):
        verify(dataclasses.replace(patch, fingerprint="0" * 64))
    with pytest.raises(PatchRefused, match=r"patched for SGLang 9\.9\.9, but 0\.5\.23 is installed"):
        verify(dataclasses.replace(patch, versions=("9.9.9",)))


# ---- POST /agentcache/complete ----


class Ranks(TokenizerControlMixin):
    """SGLang's own control path of the tokenizer manager; the test holds the schedulers' end of the wire."""

    def __init__(self, answers: list[DumperControlReqOutput]) -> None:
        self.answers = answers
        self.received: list[DumperControlReqInput] = []
        self.dumper_control_communicator = FanOutCommunicator(self.send, len(answers))

    def auto_create_handle_loop(self) -> None:
        pass

    def send(self, message: DumperControlReqInput) -> None:
        self.received.append(io_struct.msgpack_decode(io_struct.msgpack_encode(message)))
        for answer in self.answers:
            arrived = io_struct.msgpack_decode(io_struct.msgpack_encode(answer))
            asyncio.get_running_loop().call_soon(self.dumper_control_communicator.handle_recv, arrived)


def released(known: bool, now: int, later: int) -> DumperControlReqOutput:
    answer = {"known": known, "released_tokens": now, "deferred_tokens": later}
    return DumperControlReqOutput(success=True, response=[answer])


INACTIVE = DumperControlReqOutput(success=False, response=[], error="unknown method")


def server(monkeypatch, answers: list[DumperControlReqOutput], **keys: str) -> tuple[TestClient, Ranks]:
    ranks = Ranks(answers)
    state = http_server._GlobalState(tokenizer_manager=ranks, template_manager=None, scheduler_info={})
    monkeypatch.setattr(http_server, "_global_state", state)
    app = FastAPI()
    http.mount(app)
    http.mount(app)
    assert sum(route.path == "/agentcache/complete" for route in app.routes) == 1
    if keys:
        add_api_key_middleware(app, api_key=keys.get("api_key"), admin_api_key=keys.get("admin_api_key"))
    return TestClient(app), ranks


def test_completion_is_summed_over_data_parallel_ranks(monkeypatch):
    client, ranks = server(
        monkeypatch, [released(True, 100, 0), released(False, 0, 0), released(True, 20, 3)]
    )
    response = client.post("/agentcache/complete", json={"trajectory_id": "t", "cache_salt": "c"})
    assert response.status_code == 200
    expected = {"trajectory_id": "t", "known": True, "released_tokens": 120, "deferred_tokens": 3}
    assert response.json() == expected
    assert [message.method for message in ranks.received] == [COMPLETE]
    assert Completion.parse(ranks.received[0].body) == Completion("t", None, "c")


def test_an_unknown_trajectory_is_harmless(monkeypatch):
    client, _ = server(monkeypatch, [released(False, 0, 0)])
    response = client.post("/agentcache/complete", json={"trajectory_id": "t"})
    assert (response.status_code, response.json()["known"]) == (200, False)


@pytest.mark.parametrize("answers", [[INACTIVE], [released(True, 1, 0), INACTIVE]])
def test_completion_where_the_cache_is_not_active(monkeypatch, answers):
    client, _ = server(monkeypatch, answers)
    response = client.post("/agentcache/complete", json={"trajectory_id": "t"})
    assert response.status_code == 503
    assert "--radix-cache-backend agentcache" in response.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "trajectory_id"),
        (b'{"trajectory_id": "a", "salt": 1}', "salt"),
    ],
)
def test_bad_completion_bodies_are_refused_by_name(monkeypatch, body, field):
    client, ranks = server(monkeypatch, [released(True, 1, 0)])
    response = client.post("/agentcache/complete", content=body)
    assert response.status_code == 400
    assert f"{field}: " in response.text
    assert not ranks.received


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({"api_key": "user"}, {"user"}),
        ({"admin_api_key": "admin"}, {"admin"}),
        ({"api_key": "user", "admin_api_key": "admin"}, {"admin"}),
    ],
)
def test_completion_obeys_the_api_keys_like_sglangs_admin_endpoints(monkeypatch, keys, allowed):
    routes = {route.path: route.endpoint for route in http_server.app.routes if hasattr(route, "endpoint")}
    assert routes["/flush_cache"]._auth_level == http.complete._auth_level == AuthLevel.ADMIN_OPTIONAL
    client, _ = server(monkeypatch, [released(True, 1, 0)], **keys)
    for token in ("", "user", "admin", "other"):
        headers = {"Authorization": f"Bearer {token}"}
        status = client.post("/agentcache/complete", json={"trajectory_id": "t"}, headers=headers).status_code
        assert status == (200 if token in allowed else 401)


def test_set_internal_state_is_no_way_in():
    app = FastAPI()

    @app.post("/set_internal_state")
    async def set_internal_state(obj: Annotated[SetInternalStateReq, Body()]) -> bool:
        return True

    client = TestClient(app)
    assert (
        client.post("/set_internal_state", json={"server_args": {"pp_max_micro_batch_size": 8}}).json()
        is True
    )
    for value in ({"complete": {"trajectory_id": 1}}, "x", [1]):
        assert (
            client.post("/set_internal_state", json={"server_args": {"agentcache": value}}).status_code == 422
        )


def test_keys_equal_those_of_the_scheduler():
    obj = GenerateReqInput(text="x", extra_key="", cache_salt="c", sampling_params={})
    obj.sampling_params = {"custom_params": {"agentcache": pack(Hints(trajectory_id="t"), "codex")}}
    assert scheduler_sees(obj)[0].key == TrajectoryKey(Namespace(None, "c"), "t")


THROUGH_THE_ROUTER = [
    ("/generate", "custom_labels"),
    ("/v1/chat/completions", "metadata"),
    ("/v1/responses", "metadata"),
    ("/v1/messages", "metadata"),
]


@pytest.mark.parametrize(("path", "carrier"), THROUGH_THE_ROUTER)
def test_what_sglangs_router_lets_through_carries_the_payload(client, path, carrier):
    payload = {"trajectory_id": "t", "final": True, "tool_calls": [{"name": "ls"}]}
    body = BODIES[path] | {carrier: {"agentcache": json.dumps(payload)}}
    (seen,) = client.post(path, json=body).json()
    assert seen[0][1] == "t" and seen[1] == "hint"
    assert "final=True" in seen[2] and "ls" in seen[2]


@pytest.mark.parametrize(("path", "carrier"), THROUGH_THE_ROUTER)
@pytest.mark.parametrize("text", ["{", "[]", "3", '{"trajectory_id": 3}', '{"unknown": 1}'])
def test_a_malformed_payload_there_is_refused_by_its_place(client, path, carrier, text):
    response = client.post(path, json=BODIES[path] | {carrier: {"agentcache": text}})
    assert response.status_code == 400
    assert f"{carrier}.agentcache" in response.text


def test_custom_params_count_more_than_metadata(client):
    path = "/v1/chat/completions"
    body = declaring(path, {"trajectory_id": "params"}) | {
        "metadata": {"agentcache": '{"trajectory_id": "metadata", "final": true}'}
    }
    (seen,) = client.post(path, json=body).json()
    assert seen[0][1] == "params" and "final=True" in seen[2]


def test_other_labels_stay_and_ours_does_not_reach_the_metrics():
    obj = GenerateReqInput(text="x", custom_labels={"team": "a", "agentcache": "{}"})
    http.admit_generate(obj, Request({"type": "http", "headers": []}))
    assert obj.custom_labels == {"team": "a"}


SHARED = "0123456789abcdef"
TOLD = DumperControlReqOutput(success=True, response=[{"outcomes": {"applied": 1}}])


@pytest.fixture
def shared(monkeypatch) -> dict[str, str]:
    monkeypatch.setenv(SECRET, SHARED)
    return {SECRET_HEADER: SHARED}


def test_ends_reach_every_data_parallel_rank(monkeypatch, shared):
    unknown = DumperControlReqOutput(success=True, response=[{"outcomes": {"unknown": 1}}])
    client, ranks = server(monkeypatch, [unknown, TOLD, unknown])
    ended = Ended(7, 3, cache_salt="c")
    response = client.post("/agentcache/waits", json={"ended": [ended.pack()]}, headers=shared)
    assert (response.status_code, response.json()) == (200, {"outcomes": {"unknown": 2, "applied": 1}})
    assert [message.method for message in ranks.received] == [ENDED]
    assert parse_batch(ranks.received[0].body) == [ended]


@pytest.mark.parametrize("given", [None, "", "0123456789abcdee", "0123456789abcdef0", "\u00fc"])
def test_the_secret_is_asked_for(monkeypatch, shared, given):
    client, ranks = server(monkeypatch, [TOLD])
    headers = {} if given is None else {SECRET_HEADER: given.encode()}
    assert client.post("/agentcache/waits", json={"ended": []}, headers=headers).status_code == 401
    assert not ranks.received


def test_without_a_secret_nothing_is_taken(monkeypatch):
    monkeypatch.delenv(SECRET, raising=False)
    client, ranks = server(monkeypatch, [TOLD])
    response = client.post("/agentcache/waits", json={"ended": []}, headers={SECRET_HEADER: ""})
    assert response.status_code == 403 and "--agentcache-secret-file" in response.text
    assert not ranks.received


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"ended": [{"room": 1}]}', 400),
        (b'{"ended": [' + b",".join([b"{}"] * 257) + b"]}", 400),
        (b" " * (MAX_BATCH_BYTES + 1), 413),
    ],
)
def test_bad_batches_are_refused(monkeypatch, shared, body, status):
    client, ranks = server(monkeypatch, [TOLD])
    assert client.post("/agentcache/waits", content=body, headers=shared).status_code == status
    assert not ranks.received


def test_the_api_key_is_asked_for_besides(monkeypatch, shared):
    client, _ = server(monkeypatch, [TOLD], api_key="user")
    body = {"ended": []}
    assert client.post("/agentcache/waits", json=body, headers=shared).status_code == 401
    both = {**shared, "Authorization": "Bearer user"}
    assert client.post("/agentcache/waits", json=body, headers=both).status_code == 200
    only = {"Authorization": "Bearer user"}
    assert client.post("/agentcache/waits", json=body, headers=only).status_code == 401
