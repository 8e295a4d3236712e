"""The command against real HTTP servers that answer as the endpoint does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eval.server import free_port
from sglang_agentcache.complete import main


class Worker:
    def __init__(self, known: set[str], status: int = 200) -> None:
        asked = self.asked = []
        keys = self.keys = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                keys.append(self.headers.get("Authorization"))
                answer = {
                    "known": body["trajectory_id"] in known,
                    "released_tokens": 700,
                    "deferred_tokens": 0,
                }
                self.send_response(status if self.path == "/agentcache/complete" else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker({"one", "both"}), Worker({"two", "both"}), Worker(set(), status=503)]
    yield made
    for worker in made:
        worker.server.shutdown()
        worker.server.server_close()


def test_every_worker_is_asked_and_says_what_came_of_it(
    workers: list[Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = workers
    code = main(["--url", first.url, "--url", second.url + "/", "--trajectory", "one", "--trajectory", "two"])
    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{first.url}: one: released 700 tokens, 0 more when they are unlocked",
        f"{second.url}: one: unknown here",
        f"{first.url}: two: unknown here",
        f"{second.url}: two: released 700 tokens, 0 more when they are unlocked",
    ]


def test_the_namespace_and_the_key_travel(workers: list[Worker], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a-key\n")
    url = workers[0].url
    arguments = ["--url", url, "--trajectory", "one", "--cache-salt", "tenant", "--api-key-file", str(key)]
    assert main(arguments) == 0
    assert workers[0].asked == [{"trajectory_id": "one", "extra_key": None, "cache_salt": "tenant"}]
    assert workers[0].keys == ["Bearer a-key"]


def test_nobody_knows_it(workers: list[Worker]) -> None:
    urls = ["--url", workers[0].url, "--url", workers[1].url]
    assert main([*urls, "--trajectory", "neither"]) == 1
    assert main([*urls, "--trajectory", "both", "--trajectory", "neither"]) == 1


def test_a_worker_that_fails_is_named_and_the_others_are_asked(
    workers: list[Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    urls = [word for url in (gone, workers[2].url, workers[0].url) for word in ("--url", url)]
    assert main([*urls, "--trajectory", "one"]) == 1
    out = capsys.readouterr().out
    assert f"{gone}: one: failed: ConnectionError" in out
    assert f"{workers[2].url}: one: failed: HTTP 503" in out
    assert f"{workers[0].url}: one: released 700 tokens" in out


def test_a_missing_key_file_is_named(workers: list[Worker], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", workers[0].url, "--trajectory", "one", "--api-key-file", "/nowhere"]) == 1
    assert "--api-key-file" in capsys.readouterr().err
