"""`POST /agentcache/predictor` over SGLang's control path, and what each scheduler makes of it."""

import asyncio
import json
import shutil
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

http_server = pytest.importorskip("sglang.srt.entrypoints.http_server")

from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.communicator import FanOutCommunicator  # noqa: E402
from sglang.srt.managers.io_struct import DumperControlReqInput, DumperControlReqOutput  # noqa: E402
from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin  # noqa: E402
from sglang.srt.utils.auth import AuthLevel  # noqa: E402

from sglang_agentcache.config import AgentCacheConfig  # noqa: E402
from sglang_agentcache.predictor.duration import DurationPredictor  # noqa: E402
from sglang_agentcache.predictor.store import ArtefactError, load_default, save  # noqa: E402
from sglang_agentcache.predictor.tool_calls import ToolCall  # noqa: E402
from sglang_agentcache.scheduling.waits import Waits  # noqa: E402
from sglang_agentcache.serving import http  # noqa: E402
from sglang_agentcache.serving.reload import RELOAD, Artefact, digest  # noqa: E402
from tests.support.serving import Server  # noqa: E402

SERVED = ToolCall("bash", '{"command": "ls"}')


@pytest.fixture
def trained(tmp_path):
    """A directory with an artefact other than the shipped one."""
    predictor = load_default()
    for _ in range(50):
        predictor.observe(predictor.prepare(SERVED), 500.0)
    save(predictor, tmp_path / "trained")
    return tmp_path / "trained"


def waits(policy: str) -> Waits:
    server = Server("python", 1, 1024, AgentCacheConfig.parse(policy, None, page_size=1))
    assert server.agent is not None
    return Waits(server.agent, None, None)


class Ranks(TokenizerControlMixin):
    """SGLang's control path of the tokenizer manager; each rank at its other end is a `Waits`, or not ours."""

    def __init__(self, ranks: list[Waits | None]) -> None:
        self.ranks = ranks
        self.dumper_control_communicator = FanOutCommunicator(self.send, len(ranks))

    def auto_create_handle_loop(self) -> None:
        pass

    def send(self, message: DumperControlReqInput) -> None:
        arrived = io_struct.msgpack_decode(io_struct.msgpack_encode(message))
        assert arrived.method == RELOAD
        for rank in self.ranks:
            asyncio.get_running_loop().call_soon(
                self.dumper_control_communicator.handle_recv, self.answer(rank, arrived.body)
            )

    @staticmethod
    def answer(rank: Waits | None, body: dict[str, Any]) -> DumperControlReqOutput:
        """`AgentScheduler.handle_dumper_control`."""
        if rank is None:
            return DumperControlReqOutput(success=False, response=[])
        try:
            return DumperControlReqOutput(success=True, response=[{"artefact": rank.reload(body)}])
        except ArtefactError as refused:
            return DumperControlReqOutput(success=True, response=[{"refused": str(refused)}])


def client(monkeypatch, *ranks: Waits | None) -> TestClient:
    state = http_server._GlobalState(
        tokenizer_manager=Ranks(list(ranks)), template_manager=None, scheduler_info={}
    )
    monkeypatch.setattr(http_server, "_global_state", state)
    app = FastAPI()
    http.mount(app)
    return TestClient(app)


@pytest.mark.parametrize("policy", ["predictive", "convex"])
def test_every_rank_predicts_with_the_new_artefact(monkeypatch, trained, policy):
    ranks = [waits(policy), waits(policy)]
    before = ranks[0].policy.predictor.predict(SERVED)
    shipped = ranks[0].state()["predictor"]["artefact"]

    response = client(monkeypatch, *ranks).post("/agentcache/predictor", json={"path": str(trained)})

    assert (response.status_code, response.json()) == (
        200,
        {"path": str(trained), "artefact": digest(trained)},
    )
    after = [rank.policy.predictor.predict(SERVED) for rank in ranks]
    assert after[0] == after[1] > 3 * before
    for rank in ranks:
        assert rank.state()["predictor"] == {"estimator": "stacked", "artefact": digest(trained)}
    assert digest(trained) != shipped


@pytest.mark.parametrize("policy", ["predictive", "convex"])
def test_another_estimator_takes_over_trajectories_that_are_idle(tmp_path, policy, caplog):
    calls, durations = [SERVED] * 20 + [None] * 20, [1.0] * 20 + [100.0] * 20
    save(DurationPredictor("cachewise").fit(calls, durations), tmp_path / "cachewise")
    server = Server("python", 1, 1024, AgentCacheConfig.parse(policy, {"chunk_tokens": 16}, page_size=1))
    rank = Waits(server.agent, None, None)
    for number in range(3):
        server.serve(
            server.request(f"r{number}", range(100 * number, 100 * number + 80), trajectory=f"t{number}")
        )
    rank.reload(Artefact.read(tmp_path / "cachewise").pack())
    server.serve(server.request("r3", range(300, 380), trajectory="t3"))
    for _ in range(4):
        assert server.evict(16) == 16
    assert rank.state()["predictor"]["estimator"] == "cachewise"
    server.serve(server.request("again", range(90), trajectory="t0"))
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def damage_header(directory):
    header = json.loads((directory / "predictor.json").read_text())
    (directory / "predictor.json").write_text(json.dumps({**header, "version": 1, "more": 1}))


def damage_arrays(directory):
    (arrays,) = directory.glob("arrays-*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_header, "damaged (checksum differs)"),
        (damage_arrays, "damaged (checksum differs)"),
        (lambda directory: (directory / "predictor.json").write_text("{}"), "foreign"),
        (shutil.rmtree, "no predictor artefact"),
    ],
)
def test_what_is_no_artefact_changes_nothing(monkeypatch, trained, damage, reason):
    rank = waits("convex")
    predictor = rank.policy.predictor
    damage(trained)
    response = client(monkeypatch, rank).post("/agentcache/predictor", json={"path": str(trained)})
    assert response.status_code == 400
    assert response.json()["detail"].startswith(f"path: {trained}")
    assert reason in response.text
    assert rank.policy.predictor is predictor


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "path"),
        (b'{"path": 5}', "path"),
        (b'{"path": "a", "b": 1}', "b"),
    ],
)
def test_bad_bodies_are_refused_by_name(monkeypatch, body, field):
    response = client(monkeypatch, waits("convex")).post("/agentcache/predictor", content=body)
    assert response.status_code == 400
    assert response.json()["detail"].startswith(f"{field}: ")


def test_a_policy_without_a_predictor_says_so(monkeypatch, trained):
    response = client(monkeypatch, waits("rr")).post("/agentcache/predictor", json={"path": str(trained)})
    assert response.status_code == 400
    assert "'rr' uses no predictor" in response.text


def test_a_server_without_our_cache(monkeypatch, trained):
    response = client(monkeypatch, None).post("/agentcache/predictor", json={"path": str(trained)})
    assert response.status_code == 503


def test_admin_level():
    assert http.reload_predictor._auth_level == AuthLevel.ADMIN_OPTIONAL


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"files": {}},
        {"files": {"a": 1, "b": 2}},
        {"files": {"a": "%", "b": "%"}},
        {"files": [1, 2]},
    ],
)
def test_any_body_may_arrive_at_a_scheduler(body):
    rank = waits("convex")
    predictor = rank.policy.predictor
    with pytest.raises(ArtefactError):
        rank.reload(body)
    assert rank.policy.predictor is predictor


def test_names_of_a_message_are_not_paths(trained, tmp_path):
    packed = Artefact.read(trained).pack()
    files = {f"../../{tmp_path.name}/{name}": data for name, data in packed["files"].items()}
    predictor, _ = Artefact.unpack({"files": files}).load()
    assert predictor.predict(SERVED) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trained"]
