"""`POST /agentcache/predictor`: a trained artefact on its way from the HTTP process to every scheduler.

Its bytes travel, not its path: ranks that read a path each for themselves could read different things, and
then evict differently.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.store import HEADER, ArtefactError, from_files, load
from sglang_agentcache.serving.hints import HintError

#: ``DumperControlReqInput.method`` of a reload; see `hints.COMPLETE`.
RELOAD = "agentcache.predictor"
MAX_BYTES = 64 << 20


def requested_path(body: object) -> Path:
    """The directory that a request body names.

    Raises:
        HintError: names the field.
    """
    if not isinstance(body, Mapping):
        raise HintError("body", "must be an object with path")
    for name in body:
        if name != "path":
            raise HintError(str(name), "unknown field; allowed is path")
    path = body.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise HintError("path", "required; must be the directory of an artefact, as the server sees it")
    return Path(path)


def digest(directory: Path) -> str | None:
    """The id of the artefact in ``directory``: the SHA-256 that its header claims; None if it has none."""
    try:
        return _claimed(json.loads((directory / HEADER).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def _claimed(header: object) -> str | None:
    claimed = header.get("sha256") if isinstance(header, dict) else None
    return claimed if isinstance(claimed, str) else None


@dataclass(frozen=True, slots=True)
class Artefact:
    """The files of one artefact: name and content, without its baselines."""

    files: Mapping[str, bytes]

    @classmethod
    def read(cls, directory: Path) -> Artefact:
        """Read ``directory`` and check it completely.

        Raises:
            ArtefactError: absent, foreign, damaged, newer or too large; says which.
        """
        load(directory)
        try:
            arrays = str(json.loads((directory / HEADER).read_bytes())["arrays"]["file"])
            files = {name: (directory / name).read_bytes() for name in (HEADER, arrays)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"{directory}: changed while it was read ({error})") from None
        if (size := sum(map(len, files.values()))) > MAX_BYTES:
            raise ArtefactError(
                f"{directory}: {size >> 20} MiB; at most {MAX_BYTES >> 20} MiB can be reloaded"
            )
        return cls(files)

    def pack(self) -> dict[str, Any]:
        """JSON values for the message."""
        return {"files": {name: base64.b64encode(data).decode() for name, data in self.files.items()}}

    @classmethod
    def unpack(cls, body: object) -> Artefact:
        """The reverse of `pack`.

        Raises:
            ArtefactError: not such a message; SGLang's own dumper endpoint can send any body.
        """
        files = body.get("files") if isinstance(body, Mapping) else None
        if not isinstance(files, Mapping) or len(files) != 2:
            raise ArtefactError("not the message of a reload")
        try:
            decoded = {Path(name).name: base64.b64decode(data, validate=True) for name, data in files.items()}
        except (TypeError, ValueError, binascii.Error):
            raise ArtefactError("not the message of a reload") from None
        return cls(decoded)

    def load(self) -> tuple[DurationPredictor, str | None]:
        """The predictor and its id; from memory, so that no rank's disk can make it differ from the others.

        Raises:
            ArtefactError: as `store.load`.
        """
        predictor = from_files(self.files)
        return predictor, _claimed(json.loads(self.files[HEADER]))
