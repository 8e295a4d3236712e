"""The way from a decode worker to the prefill workers: lossy by design, and never in the way.

A scheduler only appends to a bounded queue. One background thread per address sends what has gathered; what
does not fit is dropped, oldest first, and counted. While an address does not answer, the prefill side orders
by what it knows itself.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests

from .messages import MAX_BATCH_BYTES, MAX_MESSAGES, Ended
from .settings import ChannelSettings

logger = logging.getLogger(__name__)

PATH = "/agentcache/waits"
SECRET_HEADER = "X-Agentcache-Secret"
"""Not `Authorization`: that one carries the prefill server's API key, if it has one."""

MAX_QUEUED = 1024
"""Messages that wait for one address: what a busy decode worker ends in about half a minute. Each holds its output."""
LINGER_S = 0.02
"""What ends within this time travels together."""
TIMEOUT_S = 10.0
RETRY_S, MAX_RETRY_S = 0.5, 5.0
_ROOM_FOR_BRACKETS = 64


class Channel:
    """Sends the ends of requests to prefill workers.

    Args:
        settings: addresses and secret.
        api_key: of the prefill servers, if they have one.
        max_queued: per address.
    """

    def __init__(
        self, settings: ChannelSettings, api_key: str | None = None, max_queued: int = MAX_QUEUED
    ) -> None:
        headers = {SECRET_HEADER: settings.secret, "Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._outlets = [Outlet(url, headers, max_queued) for url in settings.urls]

    def put(self, host: str | None, describe: Callable[[], Ended]) -> None:
        """Queue one message; returns at once.

        Args:
            host: the request's `bootstrap_host`, which is its prefill worker's. An address with another host is
                passed over, unless none has this one: then all get it, since unknown rooms are ignored there.
            describe: called once per address, in its thread.
        """
        ended_at = time.monotonic()
        matching = [outlet for outlet in self._outlets if outlet.host == _host(host)]
        for outlet in matching or self._outlets:
            outlet.put(ended_at, describe)

    def state(self) -> list[dict[str, Any]]:
        """For `GET /server_info`: one entry per address."""
        return [outlet.state() for outlet in self._outlets]

    def close(self) -> None:
        """End the threads; what is queued is lost."""
        for outlet in self._outlets:
            outlet.close()


class Outlet:
    """One address, its queue and its thread."""

    def __init__(self, url: str, headers: dict[str, str], max_queued: int) -> None:
        self.url = url
        self.host = urlsplit(url).hostname
        self.sent = self.dropped = self.refused = 0
        self._queue: deque[tuple[float, Callable[[], Ended]]] = deque()
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._closed = False
        self._down = False
        self._session = requests.Session()
        self._session.headers.update(headers)
        # Neither a proxy nor a .netrc file is for this address.
        self._session.trust_env = False
        threading.Thread(target=self._run, name=f"agentcache-{url}", daemon=True).start()

    def put(self, ended_at: float, describe: Callable[[], Ended]) -> None:
        with self._changed:
            self._queue.append((ended_at, describe))
            if len(self._queue) > self._max_queued:
                self._queue.popleft()
                self.dropped += 1
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def state(self) -> dict[str, Any]:
        with self._changed:
            return {
                "url": self.url,
                "up": not self._down,
                "queued": len(self._queue),
                "sent": self.sent,
                "dropped": self.dropped,
                "refused": self.refused,
            }

    # ---- in the thread ----

    def _run(self) -> None:
        retry_s = RETRY_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
            time.sleep(LINGER_S)
            if self._send(self._take()):
                retry_s = RETRY_S
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    def _take(self) -> list[tuple[float, Ended]]:
        """The next messages that fit one batch."""
        batch: list[tuple[float, Ended]] = []
        size = _ROOM_FOR_BRACKETS
        while len(batch) < MAX_MESSAGES:
            with self._changed:
                if not self._queue:
                    break
                ended_at, describe = self._queue.popleft()
            try:
                ended = describe()
                length = len(json.dumps(ended.pack())) + _ROOM_FOR_BRACKETS
            except Exception:
                logger.exception("agentcache: the end of a request could not be described")
                self.dropped += 1
                continue
            if length > MAX_BATCH_BYTES:
                self.dropped += 1
                continue
            if size + length > MAX_BATCH_BYTES:
                self._put_back([(ended_at, ended)])
                break
            size += length
            batch.append((ended_at, ended))
        return batch

    def _put_back(self, batch: list[tuple[float, Ended]]) -> None:
        with self._changed:
            room = self._max_queued - len(self._queue)
            kept = batch[max(0, len(batch) - room) :] if room > 0 else []
            self.dropped += len(batch) - len(kept)
            self._queue.extendleft(
                (ended_at, lambda ended=ended: ended)  # type: ignore[misc]
                for ended_at, ended in reversed(kept)
            )

    def _send(self, batch: list[tuple[float, Ended]]) -> bool:
        """Whether to go on at once; False after a failure that may pass, with the batch put back."""
        if not batch:
            return True
        now = time.monotonic()
        body = {"ended": [ended.aged(now - ended_at).pack() for ended_at, ended in batch]}
        try:
            response = self._session.post(self.url + PATH, data=json.dumps(body), timeout=TIMEOUT_S)
            problem = "" if response.ok else f"HTTP {response.status_code}: {response.text[:200]}"
            again, answered = response.status_code >= 500, True
        except requests.ReadTimeout as error:
            # It has probably arrived, at a server that is busy already.
            problem, again, answered = f"ReadTimeout: {error}", False, False
        except requests.RequestException as error:
            problem, again, answered = f"{type(error).__name__}: {error}", True, False
        if not problem:
            if self._down:
                logger.info("agentcache: %s is told of ended requests again", self.url)
            self._down = False
            self.sent += len(batch)
            return True
        if not self._down:
            logger.warning(
                "agentcache: %s is not told of ended requests until it answers; it orders without that (%s)",
                self.url,
                problem,
            )
        self._down = True
        if again:
            self._put_back(batch)
        elif answered:
            self.refused += len(batch)
        else:
            self.dropped += len(batch)
        return not again


def _host(name: str | None) -> str | None:
    return name.strip("[]").lower() if name else None
