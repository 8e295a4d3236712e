"""Import-only stand-in for torchvision: SGLang 0.5.23 imports it through ``configs/nano_nemotron_vl.py``.

The package index's Linux wheel is a CUDA build that cannot be imported beside a CPU torch. Text-only models
never call into it. Every submodule exists; every capitalised name in one is a class that cannot be
instantiated, every other name a function that raises.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__version__ = "0.0.0+cpustub"


class _AnyMember(type):
    """Metaclass whose classes have every attribute (``InterpolationMode.BICUBIC``), as its dotted name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


def _member(name: str) -> type | Callable[..., NoReturn]:
    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torchvision's {name} does not exist on a CPU install")

    return _AnyMember(name, (), {"__init__": missing}) if name[:1].isupper() else missing


class _Submodule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = sys.modules.get(f"{self.__name__}.{name}") or _member(name)
        setattr(self, name, member)
        return member


class _SubmoduleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers ``import torchvision.<anything>``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("torchvision."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the members are made on demand."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _member(name)


sys.meta_path.append(_SubmoduleFinder())
