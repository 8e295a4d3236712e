"""Durations of which only a lower bound is known, and the deterministic split of data into folds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

_ENOUGH = 10


def fold_of(group: str, n_folds: int) -> int:
    """The fold of a group of sessions; the same on every machine."""
    return zlib.crc32(group.encode("utf-8", "replace")) % n_folds


def impute(
    target: np.ndarray, censored: np.ndarray, tools: Sequence[str], programs: Sequence[str]
) -> np.ndarray:
    """Replace censored log durations by what they probably became (Buckley and James, 1979).

    A censored value becomes the mean of the finished ones beyond it, of the same program if there are
    `_ENOUGH`, else of the same tool, else of all; with none beyond it, twice its bound.

    Args:
        target: log10 durations, float64 [n]; a censored entry is its lower bound.
        censored: bool [n].
        tools, programs: keys of the rows, n each.
    """
    out = target.astype(np.float64, copy=True)
    pools: dict[tuple[str, str], list[float]] = {}
    for i in np.flatnonzero(~censored).tolist():
        for key in (("program", programs[i]), ("tool", tools[i]), ("all", "")):
            pools.setdefault(key, []).append(float(target[i]))
    ordered = {key: np.sort(np.array(values)) for key, values in pools.items()}
    for i in np.flatnonzero(censored).tolist():
        bound = float(target[i])
        beyond = np.empty(0)
        for key in (("program", programs[i]), ("tool", tools[i]), ("all", "")):
            pool = ordered.get(key, np.empty(0))
            beyond = pool[np.searchsorted(pool, bound, side="right") :]
            if len(beyond) >= _ENOUGH:
                break
        out[i] = float(beyond.mean()) if len(beyond) else bound + np.log10(2.0)
    return out
