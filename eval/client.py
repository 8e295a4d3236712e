"""One streamed ``/generate`` call to an SGLang server, timed at the client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

# A stream that is not incremental repeats all output ids in every event; a line must fit the read buffer.
READ_BUFFER = 8 << 20


class RequestFailed(RuntimeError):
    """The server refused the request or broke off; the message is the server's."""


@dataclass(frozen=True)
class Generated:
    """Answer of one call. ``first_s`` and ``total_s`` count from the moment before the request was sent."""

    output_ids: list[int]
    first_s: float
    total_s: float
    cached_tokens: int


class Client:
    """Calls one server. Use as ``async with Client(url) as client``.

    Args:
        url: base address, such as ``http://host:port``.
        api_key: sent as a bearer token if given.
        timeout_s: longest time for one whole request.
        router: the address is that of SGLang's router, which lets `custom_params` through in `custom_labels` only.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = 600.0, router: bool = False
    ) -> None:
        self._url = url.rstrip("/")
        self._router = router
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # No limit on connections: a limit would queue requests at the client and hide the wait from TTFT.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=self._timeout,
            headers=self._headers,
            read_bufsize=READ_BUFFER,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def generate(
        self, input_ids: list[int], output_tokens: int, custom_params: Mapping[str, Any] | None
    ) -> Generated:
        """Generate exactly ``output_tokens`` tokens, greedily. Raises RequestFailed."""
        assert self._session is not None, "use `async with`"
        sampling: dict[str, Any] = {
            "temperature": 0,
            "ignore_eos": True,
            "max_new_tokens": output_tokens,
        }
        message: dict[str, Any] = {"input_ids": input_ids, "sampling_params": sampling, "stream": True}
        if custom_params is not None and self._router:
            message["custom_labels"] = {
                key: msgspec.json.encode(value).decode() for key, value in custom_params.items()
            }
        elif custom_params is not None:
            sampling["custom_params"] = custom_params
        body = msgspec.json.encode(message)
        start = time.perf_counter()
        try:
            async with self._session.post(
                f"{self._url}/generate", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    raise RequestFailed(f"HTTP {response.status}: {(await response.text())[:500]}")
                return await self._read(response.content, start, output_tokens)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error

    @staticmethod
    async def _read(stream: aiohttp.StreamReader, start: float, expected: int) -> Generated:
        output: list[int] = []
        first: float | None = None
        meta: dict[str, Any] = {}
        async for line in stream:
            payload = line.strip().removeprefix(b"data:").strip()
            if not payload or payload == b"[DONE]":
                continue
            event = msgspec.json.decode(payload)
            if "error" in event:
                raise RequestFailed(str(event["error"])[:500])
            if first is None:
                first = time.perf_counter() - start
            meta = event["meta_info"]
            ids = event.get("output_ids") or []
            # Events hold either all ids so far or, with --incremental-streaming-output, the new ones only.
            output = ids if len(ids) == meta["completion_tokens"] else output + ids
        reason = meta.get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise RequestFailed(str(reason.get("message", "aborted"))[:500])
        if first is None or len(output) != expected:
            raise RequestFailed(f"the stream ended after {len(output)} of {expected} output tokens")
        return Generated(output, first, time.perf_counter() - start, int(meta.get("cached_tokens") or 0))
