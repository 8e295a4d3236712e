"""Mounts our endpoints on SGLang's FastAPI app before it serves.

Target: ``http_server.launch_server``, SGLang 0.5.23. No extension point serves: the app is a module global
whose routers are included at import, and plugins cannot name one.
"""

from typing import Any

from sglang_agentcache.patches.fingerprint import Patch


def mount(*args: Any, **kwargs: Any) -> None:
    """Add our endpoints; the API-key middleware, added later, covers them like SGLang's own."""
    from sglang.srt.entrypoints import http_server

    from sglang_agentcache.serving import http

    http.mount(http_server.app)


PATCH = Patch(
    target="sglang.srt.entrypoints.http_server.launch_server",
    kind="BEFORE",
    hook=mount,
    versions=("0.5.23",),
    fingerprint="92fe88cd0c030d93296678d5a52ff7103e23e51c5612ce8c9dabf07e9888604c",
)
