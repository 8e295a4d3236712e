"""A relay between a decode worker and a prefill worker: a hint channel that can be slow, and go away."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

from eval.server import free_port


class Relay:
    """Passes POSTs on to `target`, which may be set later, after `delay_s`; `start` and `stop` at one address."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.target = ""
        self.delay_s = 0.0
        self.bodies: list[bytes] = []
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                relay.bodies.append(body)
                time.sleep(relay.delay_s)
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower().startswith(("x-", "content-t"))
                }
                answer = requests.post(relay.target + self.path, data=body, headers=headers, timeout=60)
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Connections are refused from here on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
