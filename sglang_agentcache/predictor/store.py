"""Artefacts: a predictor as a directory that holds data only, versioned and checksummed.

``predictor.json`` names the format, its version, the parameters, the small tables, and the file of arrays
with its SHA-256; ``arrays-<digest>.npz`` holds the arrays, loaded with pickle refused. Saving over an
artefact is atomic: the arrays get a new name, and replacing ``predictor.json`` is the switch.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.state import restore, snapshot

FORMAT = "sglang-agentcache-predictor"
#: Version written. Readers take every version up to their own, and ignore fields they do not know.
VERSION = 1
HEADER = "predictor.json"
#: The predictor that ships with the package; `predictor.synthetic` makes it.
DEFAULT_DIR = Path(__file__).parent / "default"

# Limits against a damaged or hostile artefact; a trained one is a few MiB.
_MAX_HEADER_BYTES = 64 << 20
_MAX_ARRAY_BYTES = 512 << 20


class ArtefactError(ValueError):
    """The directory is not an artefact that this version can read; the message says why."""


def save(predictor: DurationPredictor, directory: Path, about: dict[str, Any] | None = None) -> str:
    """Write ``predictor`` to ``directory`` (made if absent) and return the artefact's digest.

    Args:
        about: what a reader may want to know, such as the training summary; JSON values.

    Raises:
        OSError: the directory cannot be written.
    """
    files = to_files(predictor, about)
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        _replace(directory / name, data)
    for old in directory.glob("arrays-*.npz"):
        if old.name not in files:
            old.unlink()
    return str(json.loads(files[HEADER])["sha256"])


def to_files(predictor: DurationPredictor, about: dict[str, Any] | None = None) -> dict[str, bytes]:
    """The artefact's files, name to content; the header comes last. Arguments as in `save`."""
    tables, arrays = snapshot(predictor)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "params": predictor.get_params(),
        "arrays": {"file": f"arrays-{digest[:16]}.npz", "sha256": digest},
        "tables": tables,
        "about": about or {},
    }
    header["sha256"] = _header_digest(header)
    return {
        f"arrays-{digest[:16]}.npz": data,
        HEADER: json.dumps(header, separators=(",", ":")).encode(),
    }


def read_about(directory: Path) -> dict[str, Any]:
    """What `save` was told about the artefact; raises as `load`."""
    about = _header(directory, _stored(directory)).get("about")
    return about if isinstance(about, dict) else {}


def load(directory: Path) -> DurationPredictor:
    """Read the artefact in ``directory``.

    Raises:
        ArtefactError: absent, foreign, damaged, or written by a newer version; says which.
    """
    return _load(directory, _stored(directory))


def from_files(files: Mapping[str, bytes]) -> DurationPredictor:
    """Read an artefact that is in memory, as `to_files` returns it; raises as `load`."""

    def read(name: str, most_bytes: int) -> bytes | None:
        if name not in files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return files[name] if len(files[name]) <= most_bytes else None

    return _load(Path("artefact"), read)


def load_default() -> DurationPredictor:
    """The predictor that ships with the package, trained on generated calls."""
    return load(DEFAULT_DIR)


#: Returns the content of a file of an artefact, None if it is larger than so many bytes; raises OSError.
_Read = Callable[[str, int], bytes | None]


def _stored(directory: Path) -> _Read:
    def read(name: str, most_bytes: int) -> bytes | None:
        path = directory / name
        return path.read_bytes() if path.stat().st_size <= most_bytes else None

    return read


def _load(directory: Path, read: _Read) -> DurationPredictor:
    header = _header(directory, read)
    arrays = _arrays(directory, header, read)
    try:
        predictor = DurationPredictor(**header["params"])
        restore(predictor, header["tables"], arrays)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ArtefactError(f"{directory}: the artefact's contents do not fit together: {error}") from None
    return predictor


def _header(directory: Path, read: _Read) -> dict[str, Any]:
    path = directory / HEADER
    try:
        data = read(HEADER, _MAX_HEADER_BYTES)
        if data is None:
            raise ArtefactError(f"{path}: larger than {_MAX_HEADER_BYTES >> 20} MiB, not one of ours")
        header = json.loads(data)
    except OSError as error:
        raise ArtefactError(f"{directory}: no predictor artefact ({error.strerror}: {HEADER})") from None
    except (ValueError, RecursionError):
        raise ArtefactError(f"{path}: damaged (not JSON)") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ArtefactError(f"{path}: foreign (its format is not {FORMAT!r})")
    version = header.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ArtefactError(f"{path}: damaged (version {version!r})")
    if version > VERSION:
        raise ArtefactError(f"{path}: format version {version}; this package reads versions 1 to {VERSION}")
    claimed = header.pop("sha256", None)
    if claimed != _header_digest(header):
        raise ArtefactError(f"{path}: damaged (checksum differs)")
    return header


def _arrays(directory: Path, header: dict[str, Any], read: _Read) -> dict[str, np.ndarray]:
    named = header.get("arrays")
    name = str(named.get("file")) if isinstance(named, dict) else ""
    if not isinstance(named, dict) or Path(name).name != name or not name:
        raise ArtefactError(f"{directory}: damaged (no usable name for the arrays)")
    path = directory / name
    try:
        data = read(name, _MAX_ARRAY_BYTES)
        if data is None:
            raise ArtefactError(f"{path}: larger than {_MAX_ARRAY_BYTES >> 20} MiB, not one of ours")
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != named.get("sha256"):
        raise ArtefactError(f"{path}: damaged (checksum differs)")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(item.file_size for item in archive.infolist()) > _MAX_ARRAY_BYTES:
                raise ArtefactError(f"{path}: unpacks to more than {_MAX_ARRAY_BYTES >> 20} MiB")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ArtefactError(f"{path}: damaged ({error})") from None


def _header_digest(header: dict[str, Any]) -> str:
    body = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    os.replace(beside, path)
