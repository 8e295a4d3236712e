"""The names of the tools that a request declares: the scheduler's detectors look for calls of those.

They travel beside the hints as one JSON text, since `custom_params` may hold nothing deeper (`hints.pack`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping

from sglang_agentcache.serving.hints import KEY, TOOLS

MAX_TOOLS = 256
MAX_NAME_CHARS = 128


def declared_tools(body: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the tools in a body of the OpenAI or Anthropic API, in order.

    Returns:
        () if there are none, or more or longer ones than may travel: then calls of any name count.
    """
    names = tuple(dict.fromkeys(_names(body)))
    return names if len(names) <= MAX_TOOLS and all(len(name) <= MAX_NAME_CHARS for name in names) else ()


def _names(body: Mapping[str, object]) -> Iterator[str]:
    messages = body.get("messages")
    # Some chat templates take tools inside a message.
    for holder in (body, *(messages if isinstance(messages, list) else ())):
        tools = holder.get("tools") if isinstance(holder, Mapping) else None
        for tool in tools if isinstance(tools, list) else ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str) and name:
                yield name


def pack_names(names: tuple[str, ...]) -> str:
    """The form in which the names travel."""
    return json.dumps(names, separators=(",", ":"))


def carried_tools(custom_params: object) -> tuple[str, ...]:
    """The names that came with a request, in the scheduler; () if none did. Never raises."""
    payload = custom_params.get(KEY) if isinstance(custom_params, Mapping) else None
    packed = payload.get(TOOLS) if isinstance(payload, Mapping) else None
    return _unpack(packed) if isinstance(packed, str) else ()


@functools.lru_cache(maxsize=256)
def _unpack(packed: str) -> tuple[str, ...]:
    try:
        names = json.loads(packed)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list):
        return ()
    return tuple(name[:MAX_NAME_CHARS] for name in names[:MAX_TOOLS] if isinstance(name, str))
