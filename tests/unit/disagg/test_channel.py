"""The channel against a real HTTP server on the loopback interface."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from eval.server import free_port
from sglang_agentcache.disagg import channel as module
from sglang_agentcache.disagg.channel import PATH, SECRET_HEADER, Channel
from sglang_agentcache.disagg.messages import MAX_BATCH_BYTES, Ended, parse_batch
from sglang_agentcache.disagg.settings import ChannelSettings
from sglang_agentcache.predictor.tool_calls import ToolCall

SECRET = "0123456789abcdef"


class Prefill:
    """Reads batches and answers with `status`; can go away and come back at the same address."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.status = 200
        self.delay_s = 0.0
        self.batches: list[list[Ended]] = []
        self.headers: list[dict[str, str]] = []
        self.server: ThreadingHTTPServer | None = None

    @property
    def rooms(self) -> list[int]:
        return [ended.room for batch in self.batches for ended in batch]

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == PATH and len(body) <= MAX_BATCH_BYTES
                if outer.status == 200:
                    outer.batches.append(parse_batch(json.loads(body)))
                    outer.headers.append(dict(self.headers))
                time.sleep(outer.delay_s)
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(module, "MAX_RETRY_S", 0.1)


@pytest.fixture
def prefill() -> Iterator[Prefill]:
    made = Prefill()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def made() -> Iterator[Callable[..., Channel]]:
    channels: list[Channel] = []

    def make(*urls: str, **options: Any) -> Channel:
        channels.append(Channel(ChannelSettings(urls, SECRET), **options))
        return channels[-1]

    yield make
    for channel in channels:
        channel.close()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def say(channel: Channel, *rooms: int, host: str | None = "127.0.0.1") -> None:
    for room in rooms:
        channel.put(host, lambda room=room: Ended(room, 1))


def test_messages_arrive_in_order_and_together(prefill: Prefill, made: Callable[..., Channel]) -> None:
    channel = made(prefill.url, api_key="a-key")
    say(channel, *range(300))
    until(lambda: len(prefill.rooms) == 300)
    assert prefill.rooms == list(range(300))
    assert len(prefill.batches) < 30
    assert prefill.headers[0][SECRET_HEADER] == SECRET
    assert prefill.headers[0]["Authorization"] == "Bearer a-key"
    # The last answer may still be on its way back.
    until(lambda: channel.state()[0]["sent"] == 300)
    (state,) = channel.state()
    assert state == {"url": prefill.url, "up": True, "queued": 0, "sent": 300, "dropped": 0, "refused": 0}


def test_putting_neither_describes_nor_waits(made: Callable[..., Channel], prefill: Prefill) -> None:
    described_in: list[str] = []

    def slow() -> Ended:
        described_in.append(threading.current_thread().name)
        time.sleep(0.3)
        return Ended(1, 1)

    start = time.monotonic()
    made(prefill.url).put(None, slow)
    assert time.monotonic() - start < 0.2
    until(lambda: prefill.rooms == [1])
    assert described_in == [f"agentcache-{prefill.url}"]


def test_an_outage_is_said_once_bounded_and_over_by_itself(
    prefill: Prefill, made: Callable[..., Channel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=module.__name__)
    prefill.stop()
    channel = made(prefill.url, max_queued=10)
    say(channel, *range(50))
    until(lambda: not channel.state()[0]["up"])
    time.sleep(0.5)
    (state,) = channel.state()
    assert state["queued"] <= 10 and state["sent"] == 0
    assert caplog.text.count("is not told of ended requests") == 1
    assert SECRET not in caplog.text

    prefill.start()

    until(lambda: channel.state()[0]["up"])
    until(lambda: not channel.state()[0]["queued"])
    # The newest were kept, each with its age.
    assert prefill.rooms == list(range(40, 50))
    assert all(ended.age_s > 0.3 for batch in prefill.batches for ended in batch)
    assert channel.state()[0]["dropped"] == 40
    assert caplog.text.count("again") == 1


def test_a_refusal_is_not_repeated(prefill: Prefill, made: Callable[..., Channel]) -> None:
    prefill.status = 401
    channel = made(prefill.url)
    say(channel, 1, 2)
    until(lambda: channel.state()[0]["refused"] == 2)
    assert channel.state()[0]["queued"] == 0
    prefill.status = 503
    say(channel, 3)
    time.sleep(0.3)
    prefill.status = 200
    until(lambda: prefill.rooms == [3])


def test_what_has_probably_arrived_is_not_sent_again(
    prefill: Prefill, made: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    prefill.delay_s = 1.0
    channel = made(prefill.url)
    say(channel, 1)
    until(lambda: channel.state()[0]["dropped"] == 1)
    assert not channel.state()[0]["up"]
    prefill.delay_s = 0.0
    say(channel, 2)
    until(lambda: channel.state()[0]["up"])
    assert prefill.rooms == [1, 2]


def test_the_prefill_worker_of_the_request_is_told(prefill: Prefill, made: Callable[..., Channel]) -> None:
    other = Prefill()
    channel = made(prefill.url, f"http://localhost:{other.port}")
    other.start()
    say(channel, 1, host="127.0.0.1")
    say(channel, 2, host="localhost")
    say(channel, 3, host="a name of neither")
    say(channel, 4, host=None)
    until(lambda: len(prefill.rooms) == 3 and len(other.rooms) == 3)
    assert (prefill.rooms, other.rooms) == ([1, 3, 4], [2, 3, 4])
    other.stop()


def test_batches_stay_below_the_limit_of_the_endpoint(prefill: Prefill, made: Callable[..., Channel]) -> None:
    channel = made(prefill.url)
    large = Ended(1, 1, tool_calls=tuple(ToolCall("write", "\u00e9" * 30_000) for _ in range(3)))
    beyond = Ended(2, 1, tool_calls=tuple(ToolCall("write", "x" * 60_000) for _ in range(30)))
    for ended in (large, beyond, large, large):
        channel.put(None, lambda ended=ended: ended)
    until(lambda: len(prefill.rooms) == 3)
    assert channel.state()[0]["dropped"] == 1
    assert len(prefill.batches) > 1


def test_what_cannot_be_described_is_dropped(prefill: Prefill, made: Callable[..., Channel]) -> None:
    channel = made(prefill.url)
    channel.put(None, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    say(channel, 5)
    until(lambda: prefill.rooms == [5])
    assert channel.state()[0]["dropped"] == 1
