"""The fitted state of a predictor as JSON tables and numpy arrays, and back, with every shape checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sglang_agentcache.predictor.cachewise import MAX_SAMPLES, CachewiseEstimator, Empirical, ToolClusters
from sglang_agentcache.predictor.counters import KeyMeans
from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.features import N_TERMS
from sglang_agentcache.predictor.linear import TermRidge
from sglang_agentcache.predictor.residuals import EDGES, ResidualBands, ResidualBook
from sglang_agentcache.predictor.stacked import COLUMNS, StackedEstimator
from sglang_agentcache.predictor.trees import BoostedTrees

Arrays = dict[str, np.ndarray]
_TREE_ARRAYS = {
    "feature": np.int16,
    "threshold": np.float64,
    "left": np.int16,
    "right": np.int16,
    "missing_left": np.bool_,
    "value": np.float64,
}
_KEY_MEANS = ("tools", "programs", "tool_drift", "program_drift")


def snapshot(predictor: DurationPredictor) -> tuple[dict[str, Any], Arrays]:
    """Return (JSON tables, arrays) of a predictor."""
    model = predictor.model_
    return _snapshot_stacked(model) if isinstance(model, StackedEstimator) else _snapshot_cachewise(model)


def restore(
    predictor: DurationPredictor, tables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Put a snapshot into a predictor built with the same parameters.

    Raises:
        ValueError, KeyError, TypeError: something is missing, misshapen, out of range, or not finite.
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"array {name} holds NaN")
    model = predictor.model_
    if isinstance(model, StackedEstimator):
        _restore_stacked(model, tables, arrays)
    else:
        _restore_cachewise(model, tables, arrays)


def _snapshot_stacked(model: StackedEstimator) -> tuple[dict[str, Any], Arrays]:
    used = np.flatnonzero(model.ridge_.coef_)
    arrays: Arrays = {
        "term": used.astype(np.int32),
        "idf": model.ridge_.idf_[used],
        "coef": model.ridge_.coef_[used],
    }
    arrays |= {f"trees.{key}": getattr(model.trees_, key + "_") for key in _TREE_ARRAYS}
    tools = list(model.residuals_.tools_)
    for number, bands in enumerate([model.residuals_.all_, *model.residuals_.tools_.values()]):
        arrays |= {f"residuals{number}.borders": bands.borders_, f"residuals{number}.counts": bands.counts_}
    tables: dict[str, Any] = {
        "columns": list(COLUMNS),
        "n_terms": N_TERMS,
        "base": model.base_,
        "unseen_idf": float(model.ridge_.idf_.max()),
        "intercept": model.ridge_.intercept_,
        "tree_baseline": model.trees_.baseline_,
        "residual_tools": tools,
    }
    tables |= {name: getattr(model, name + "_").state() for name in _KEY_MEANS}
    return tables, arrays


def _restore_stacked(
    model: StackedEstimator, tables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    if tables["columns"] != list(COLUMNS) or tables["n_terms"] != N_TERMS:
        raise ValueError("it was trained on other features; train again with this version")
    term = arrays["term"]
    _shaped("term", term, (len(term),), 0, N_TERMS)
    ridge = TermRidge()
    ridge.idf_[:] = _number(tables["unseen_idf"])
    for name in ("idf", "coef"):
        _shaped(name, arrays[name], term.shape)
        getattr(ridge, name + "_")[term] = arrays[name]
    ridge.intercept_ = _number(tables["intercept"])
    model.ridge_ = ridge
    model.base_ = _number(tables["base"])
    _restore_trees(model.trees_, arrays)
    model.trees_.baseline_ = _number(tables["tree_baseline"])
    book = ResidualBook()
    book.all_ = _restore_bands("residuals0", arrays)
    for number, tool in enumerate(tables["residual_tools"], 1):
        book.tools_[str(tool)] = _restore_bands(f"residuals{number}", arrays)
    model.residuals_ = book
    for name in _KEY_MEANS:
        means: KeyMeans = getattr(model, name + "_")
        means.restore({key: [_number(pair[0]), _number(pair[1])] for key, pair in tables[name].items()})


def _restore_bands(name: str, arrays: Mapping[str, np.ndarray]) -> ResidualBands:
    borders, counts = arrays[f"{name}.borders"], arrays[f"{name}.counts"]
    _shaped(f"{name}.borders", borders, (len(borders),))
    _shaped(f"{name}.counts", counts, (len(borders) + 1, len(EDGES) - 1))
    if counts.min() < 0 or not np.isfinite(counts.max()) or (np.diff(borders) < 0).any():
        raise ValueError(f"{name}: counts that are none, or borders out of order")
    return ResidualBands(borders.astype(np.float64), counts.astype(np.float64))


def _restore_trees(trees: BoostedTrees, arrays: Mapping[str, np.ndarray]) -> None:
    shape = arrays["trees.value"].shape
    if len(shape) != 2 or not 1 <= shape[0] <= 1000 or not 1 <= shape[1] <= 4096:
        raise ValueError(f"trees: shape {shape}")
    for key, kind in _TREE_ARRAYS.items():
        array = arrays[f"trees.{key}"]
        limit = {"feature": len(COLUMNS), "left": shape[1], "right": shape[1]}.get(key)
        _shaped(f"trees.{key}", array, shape, *((0, limit) if limit else ()))
        setattr(trees, key + "_", array.astype(kind))


def _snapshot_cachewise(model: CachewiseEstimator) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {"all": model.all_.samples(), "person": model.person_.samples()}
    tools: list[dict[str, Any]] = []
    for name, tool in model.tools_.items():
        key = f"tool{len(tools)}"
        lone = len(tool.clusters) == 1 and tool.clusters[0] is tool.durations
        words = sorted(tool.vocabulary, key=tool.vocabulary.__getitem__)
        tools.append({"name": name, "words": words, "lone": lone})
        arrays |= {
            f"{key}.idf": tool.idf,
            f"{key}.centres": tool.centres,
            f"{key}.durations": tool.durations.samples(),
            f"{key}.sizes": np.array([len(one) for one in tool.clusters], dtype=np.int32),
            f"{key}.samples": np.concatenate([one.samples() for one in tool.clusters]),
        }
    return {"tools": tools}, arrays


def _restore_cachewise(
    model: CachewiseEstimator, tables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    model.all_, model.person_ = Empirical(_samples(arrays["all"])), Empirical(_samples(arrays["person"]))
    model.tools_ = {}
    for number, entry in enumerate(tables["tools"]):
        key = f"tool{number}"
        words = [str(word) for word in entry["words"]]
        idf, centres, sizes = arrays[f"{key}.idf"], arrays[f"{key}.centres"], arrays[f"{key}.sizes"]
        _shaped(f"{key}.idf", idf, (len(words),))
        _shaped(f"{key}.sizes", sizes, (len(sizes),), 0, MAX_SAMPLES + 1)
        _shaped(f"{key}.centres", centres, (max(len(sizes), 1), len(words)))
        samples = arrays[f"{key}.samples"]
        if int(sizes.sum()) != len(samples) or not len(sizes):
            raise ValueError(
                f"{key}: {len(samples)} samples for cluster sizes that sum to {int(sizes.sum())}"
            )
        durations = Empirical(_samples(arrays[f"{key}.durations"]))
        clusters = [Empirical(_samples(part)) for part in np.split(samples, np.cumsum(sizes)[:-1])]
        model.tools_[str(entry["name"])] = ToolClusters(
            {word: at for at, word in enumerate(words)},
            idf.astype(np.float64),
            centres.astype(np.float32),
            (centres.astype(np.float64) ** 2).sum(axis=1),
            [durations] if entry["lone"] else clusters,
            durations,
        )


def _samples(array: np.ndarray) -> list[float]:
    if array.ndim != 1 or (len(array) and (array.min() < 0 or not np.isfinite(array.max()))):
        raise ValueError("durations must be finite and not negative")
    return [float(value) for value in array.tolist()]


def _shaped(
    name: str, array: np.ndarray, shape: tuple[int, ...], low: int | None = None, high: int | None = None
) -> None:
    if array.shape != shape or array.dtype.kind not in "fiub":
        raise ValueError(f"array {name} is {array.dtype}{array.shape}, expected {shape}")
    if low is not None and high is not None and array.size and (array.min() < low or array.max() >= high):
        raise ValueError(f"array {name} holds entries outside [{low}, {high})")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)
