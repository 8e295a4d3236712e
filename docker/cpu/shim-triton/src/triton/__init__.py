"""Import-only stand-in for triton: kernels can be defined, none can be launched.

SGLang 0.5.23 imports triton at module level in ``srt/utils/common.py`` and some 76 other files. SGLang's own
``_platform_stubs.py`` does the same on macOS.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

__version__ = "3.7.1"


def _inert_class(name: str) -> type:
    def ignore_arguments(self: Any, *args: Any, **kwargs: Any) -> None:
        """Instances carry nothing."""

    return type(name, (), {"__init__": ignore_arguments})


class _Anything(types.ModuleType):
    """A module with every attribute: capitalised ones are classes, the others such modules again.

    It also passes as a decorator, and as an empty container (torch asks for "cpu" in ``backends.backends``).
    """

    __path__: list[str]

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        member = _inert_class(name) if name[:1].isupper() else _Anything(full)
        setattr(self, name, member)
        return member

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda fn: fn

    def __getitem__(self, key: Any) -> "_Anything":
        return self

    def __mul__(self, other: Any) -> "_Anything":
        return self

    def __contains__(self, item: Any) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False


class Config:
    """``triton.Config``: SGLang builds lists of them for ``autotune`` at import."""

    def __init__(
        self, kwargs: dict[str, Any] | None = None, num_warps: int = 4, num_stages: int = 2, **extra: Any
    ) -> None:
        self.kwargs = kwargs or {}
        self.num_warps = num_warps
        self.num_stages = num_stages


def cdiv(a: int, b: int) -> int:
    """Ceiling division, as ``triton.cdiv``."""
    return -(a // -b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``; 0 for 0, as ``triton.next_power_of_2``."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


class _Kernel:
    """What ``@triton.jit`` leaves: it keeps the function and refuses to launch."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__module__ = getattr(fn, "__module__", __name__)

    def __getitem__(self, grid: Any) -> Callable[..., NoReturn]:
        def launch(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"triton kernel {self.__name__} cannot be launched on a CPU install")

        return launch

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self[None](*args, **kwargs)


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """``@triton.jit``, bare or with options."""
    return _Kernel(fn) if callable(fn) else _Kernel


def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """``@triton.autotune(...)``: leaves the kernel as it is."""
    return lambda fn: fn


def heuristics(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """``@triton.heuristics(...)``: leaves the kernel as it is."""
    return lambda fn: fn


class _SubmoduleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers ``import triton.<anything>``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return sys.modules.get(spec.name) or _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the members are made on demand."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    full = f"triton.{name}"
    if full not in sys.modules:
        if name[:1].isupper():
            return _inert_class(name)
        sys.modules[full] = _Anything(full)
    return sys.modules[full]


sys.meta_path.append(_SubmoduleFinder())
