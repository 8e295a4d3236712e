"""Where a decode worker sends what it learns, and the secret that both sides share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sglang_agentcache.config import ConfigError

PREFILL_URL = "SGLANG_AGENTCACHE_PREFILL_URL"
SECRET = "SGLANG_AGENTCACHE_SECRET"
SECRET_FILE = "SGLANG_AGENTCACHE_SECRET_FILE"
URL_FLAG, SECRET_FLAG = "--agentcache-prefill-url", "--agentcache-secret-file"

MIN_SECRET_CHARS, MAX_SECRET_CHARS = 16, 1024


class ChannelSettings(NamedTuple):
    """`urls` are base addresses of prefill workers, as `http://host:port`; empty: nothing is sent."""

    urls: tuple[str, ...]
    secret: str


def channel_settings(environment: Mapping[str, str] = os.environ) -> ChannelSettings | None:
    """What a decode worker was told; None if nothing.

    Raises:
        ConfigError: a malformed address, or no secret to go with it.
    """
    given = environment.get(PREFILL_URL)
    if given is None:
        return None
    urls = tuple(dict.fromkeys(_url(text.strip()) for text in given.split(",")))
    shared = secret(environment)
    if shared is None:
        raise ConfigError(
            f"{URL_FLAG} ({PREFILL_URL}) needs the secret that the prefill worker was given: {SECRET_FLAG} FILE "
            f"({SECRET_FILE}) or {SECRET}"
        )
    return ChannelSettings(urls, shared)


def secret(environment: Mapping[str, str] = os.environ) -> str | None:
    """The shared secret; None if there is none.

    Raises:
        ConfigError: both ways are used at once, the file cannot be read, or the secret is not one.
    """
    text, path = environment.get(SECRET), environment.get(SECRET_FILE)
    if text is not None and path is not None:
        raise ConfigError(f"{SECRET_FLAG} ({SECRET_FILE}) and {SECRET} are both set; use one")
    where = SECRET
    if path is not None:
        where = f"{SECRET_FLAG} ({SECRET_FILE})"
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} must name a readable text file: {error}") from None
    if text is None:
        return None
    if not MIN_SECRET_CHARS <= len(text) <= MAX_SECRET_CHARS or not all("!" <= char <= "~" for char in text):
        # Never quote it: this sentence goes to the log.
        raise ConfigError(
            f"{where} must be {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} printable ASCII characters without spaces"
        )
    return text


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ConfigError(
            f"{URL_FLAG} ({PREFILL_URL}) must be addresses such as http://host:port, separated by commas; "
            f"got {text!r}"
        )
    return f"{parts.scheme}://{parts.netloc}"
