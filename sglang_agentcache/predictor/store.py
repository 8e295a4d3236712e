"""Artefacts: a predictor as a directory that holds data only, versioned and checksummed.

``predictor.json`` names the format, its version, the parameters, the small tables, and the file of arrays
with its SHA-256; ``arrays-<digest>.npz`` holds the arrays, loaded with pickle refused. Saving over an
artefact is atomic: the arrays get a new name, and replacing ``predictor.json`` is the switch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
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
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / f"arrays-{digest[:16]}.npz", data)
    _replace(directory / HEADER, json.dumps(header, separators=(",", ":")).encode())
    for old in directory.glob("arrays-*.npz"):
        if old.name != f"arrays-{digest[:16]}.npz":
            old.unlink()
    return str(header["sha256"])


def read_about(directory: Path) -> dict[str, Any]:
    """What `save` was told about the artefact; raises as `load`."""
    about = _read_header(directory).get("about")
    return about if isinstance(about, dict) else {}


def load(directory: Path) -> DurationPredictor:
    """Read the artefact in ``directory``.

    Raises:
        ArtefactError: absent, foreign, damaged, or written by a newer version; says which.
    """
    header = _read_header(directory)
    arrays = _read_arrays(directory, header)
    try:
        predictor = DurationPredictor(**header["params"])
        restore(predictor, header["tables"], arrays)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ArtefactError(f"{directory}: the artefact's contents do not fit together: {error}") from None
    return predictor


def load_default() -> DurationPredictor:
    """The predictor that ships with the package, trained on generated calls."""
    return load(DEFAULT_DIR)


def _read_header(directory: Path) -> dict[str, Any]:
    path = directory / HEADER
    try:
        if path.stat().st_size > _MAX_HEADER_BYTES:
            raise ArtefactError(f"{path}: larger than {_MAX_HEADER_BYTES >> 20} MiB, not one of ours")
        header = json.loads(path.read_bytes())
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


def _read_arrays(directory: Path, header: dict[str, Any]) -> dict[str, np.ndarray]:
    named = header.get("arrays")
    name = str(named.get("file")) if isinstance(named, dict) else ""
    if not isinstance(named, dict) or Path(name).name != name or not name:
        raise ArtefactError(f"{directory}: damaged (no usable name for the arrays)")
    path = directory / name
    try:
        if path.stat().st_size > _MAX_ARRAY_BYTES:
            raise ArtefactError(f"{path}: larger than {_MAX_ARRAY_BYTES >> 20} MiB, not one of ours")
        data = path.read_bytes()
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
