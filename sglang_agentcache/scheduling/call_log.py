"""The call log: one line for each tool call and how long its wait took. `sglang_agentcache.train` reads it.

No text of messages, no ids of clients; arguments are cut. Writing happens in a thread of its own: a slow or
full disk costs lines, never a scheduler step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import queue
import sys
import time
from collections.abc import Sequence
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

from sglang_agentcache.predictor.tool_calls import ToolCall
from sglang_agentcache.trajectory.identity import TrajectoryKey

logger = logging.getLogger(__name__)

MAX_ARGUMENTS_CHARS = 8_192
"""The predictor reads no more than half of it."""
MAX_NAME_CHARS = 128
MAX_CALLS = 32
_MAX_QUEUED = 4_096


class CallLog:
    """Appends to ``path``; once half of ``max_bytes`` is reached, the file becomes `PATH.1` and a new one begins.

    Args:
        path: made if absent, its folder must exist. If it cannot be written, one warning says so.
        max_bytes: of both files together.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(_MAX_QUEUED)
        self._file = _File(path, max_bytes // 2)
        self._entrance = _Entrance(self._queue)
        self._listener = _Listener(self._queue, self._file)
        self._listener.start()

    def add(
        self, key: TrajectoryKey, calls: Sequence[ToolCall], duration_s: float, *, censored: bool = False
    ) -> None:
        """Note that ``key`` has returned ``duration_s`` seconds after it called these; none: from a person.

        Parallel calls are lines with the same `t_s`, the time of day at which the wait began. ``censored``: it
        had not returned by then.
        """
        began = round(time.time() - duration_s, 3)
        entry = {"t_s": began, "trajectory": hashed(key)}
        for call in calls[:MAX_CALLS] or (None,):
            line = {
                **entry,
                "name": call.name[:MAX_NAME_CHARS] if call else None,
                "arguments": _text(call.arguments) if call else "",
                "duration_s": round(duration_s, 3),
                "censored": censored,
            }
            self._entrance.handle(logging.makeLogRecord({"msg": json.dumps(line, separators=(",", ":"))}))

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._listener.stop()
        with contextlib.suppress(OSError):
            self._file.close()


def hashed(key: TrajectoryKey) -> str:
    """A name for the trajectory that is the same in all lines and does not tell its id."""
    parts = json.dumps([*key.namespace, key.trajectory_id]).encode()
    return hashlib.blake2b(parts, digest_size=8).hexdigest()


def _text(arguments: object) -> str:
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        text = ""
    return text[:MAX_ARGUMENTS_CHARS]


class _Entrance(QueueHandler):
    """Drops lines while the disk is too slow."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._told:
            logger.warning("agentcache: the call log cannot keep up; lines are lost")
            self._told = True


class _Listener(QueueListener):
    def __init__(self, lines: queue.Queue[Any], file: logging.Handler) -> None:
        super().__init__(lines, file)
        self._lines = lines

    def enqueue_sentinel(self) -> None:
        # The superclass does not wait for room in the queue.
        self._lines.put(None)


class _File(RotatingFileHandler):
    """Warns once that it cannot be written, and tries again with every line."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8", delay=True)
        self._told = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._told:
            logger.warning(
                "agentcache: cannot write the call log %s: %s", self.baseFilename, sys.exc_info()[1]
            )
            self._told = True
