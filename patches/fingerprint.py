"""What a patch says about itself, and the check that upstream is still what it was written against."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class PatchRefused(RuntimeError):
    """The installed SGLang is not the one a patch was written against."""


@dataclass(frozen=True)
class Patch:
    """One hook on one SGLang symbol.

    Attributes:
        target: dotted name of the function, method or class.
        kind: name of the ``HookType`` in ``sglang.srt.plugins.hook_registry``.
        hook: called as that type demands.
        versions: SGLang versions it is for.
        fingerprint: `source_hash` of the target in those versions.
        needs: a package without which SGLang serves, but has no such target; "" if there always is one.
    """

    target: str
    kind: str
    hook: Callable[..., Any]
    versions: tuple[str, ...]
    fingerprint: str
    needs: str = ""

    def applies(self) -> bool:
        """Whether there is anything to patch in this installation."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def source_hash(target: str) -> str:
    """Return the sha256 (hex) of the source of ``target``, of the original if it is already wrapped."""
    return hashlib.sha256(inspect.getsource(pkgutil.resolve_name(target)).encode()).hexdigest()


def verify(patch: Patch) -> None:
    """Raise `PatchRefused` unless the installed SGLang has the version and source that ``patch`` is for."""
    from sglang.version import __version__

    versions = ", ".join(patch.versions)
    if __version__ not in patch.versions:
        raise PatchRefused(f"{patch.target}: patched for SGLang {versions}, but {__version__} is installed")
    if source_hash(patch.target) != patch.fingerprint:
        raise PatchRefused(f"{patch.target}: its source differs from that of the published SGLang {versions}")
