"""Scores of a fitted predictor on recorded waits, each wait seen with its session's own past only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_agentcache.predictor.baselines import wait_name
from sglang_agentcache.predictor.duration import DurationPredictor, PreparedWait
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.metrics import score
from sglang_agentcache.predictor.records import WaitRecords
from sglang_agentcache.predictor.stacked import Seen, StackedEstimator
from sglang_agentcache.predictor.survival import log_seconds
from sglang_agentcache.predictor.tool_calls import Wait

#: Smallest group that is reported on its own.
MIN_ROWS = 50


def prepare_all(
    predictor: DurationPredictor, records: WaitRecords, online: bool = False
) -> list[PreparedWait]:
    """Prepare every row in order; afterwards its session remembers the true duration, and nothing else does.

    Args:
        online: the predictor learns it too, as in a server, and so is another one when this returns.
    """
    if online:
        return _prepare_and_observe(predictor, records)
    model = predictor.model_
    if not isinstance(model, StackedEstimator):
        return [predictor.prepare(wait) for wait in records.waits]
    open_sessions: dict[str, SessionHistory] = {}
    seen: list[Seen] = []
    for wait, session, log_duration in zip(
        records.waits, records.sessions, log_seconds(np.array(records.durations)).tolist(), strict=True
    ):
        history = open_sessions.setdefault(session, SessionHistory())
        seen.append(model.look(wait, history))
        history.add(seen[-1].call, log_duration, seen[-1].words)
    return list(model.finish(seen))


def _prepare_and_observe(predictor: DurationPredictor, records: WaitRecords) -> list[PreparedWait]:
    open_sessions: dict[str, SessionHistory] = {}
    out: list[PreparedWait] = []
    for at, wait in enumerate(records.waits):
        history = open_sessions.setdefault(records.sessions[at], SessionHistory())
        out.append(predictor.prepare(wait, history))
        predictor.observe(out[-1], records.durations[at], history=history, censored=records.censored[at])
    return out


def prepare_plain(predictor: DurationPredictor, waits: Sequence[Wait]) -> list[PreparedWait]:
    """Prepare waits as the first ones of their sessions."""
    model = predictor.model_
    if isinstance(model, StackedEstimator):
        return list(model.finish([model.look(wait) for wait in waits]))
    return [predictor.prepare(wait) for wait in waits]


def tool_rows(records: WaitRecords) -> np.ndarray:
    """Row numbers that scores are about: finished waits for tools."""
    return np.flatnonzero(records.is_tool() & ~np.array(records.censored, dtype=bool))


def coverage(
    predictor: DurationPredictor, waits: list[PreparedWait], actual: np.ndarray, share: float = 0.8
) -> float:
    """Share of the true durations inside the predicted central interval of ``share``."""
    if not waits:
        return float("nan")
    low, high = predictor.quantile(waits, (1 - share) / 2), predictor.quantile(waits, (1 + share) / 2)
    return float(np.mean((actual >= low - 1e-9) & (actual <= high + 1e-9)))


def detailed(
    predictor: DurationPredictor, waits: list[PreparedWait], actual: np.ndarray, labels: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Scores and 80 % coverage for every label with at least `MIN_ROWS` rows, largest first."""
    rows: dict[str, list[int]] = {}
    for at, label in enumerate(labels):
        rows.setdefault(label or "unknown", []).append(at)
    out: dict[str, dict[str, Any]] = {}
    for label, own in sorted(rows.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(own) >= MIN_ROWS:
            chosen = [waits[i] for i in own]
            covered = coverage(predictor, chosen, actual[own])
            out[label] = {**score(actual[own], predictor.predict(chosen)), "coverage_80": round(covered, 4)}
    return out


def evaluate(predictor: DurationPredictor, records: WaitRecords, online: bool = False) -> dict[str, Any]:
    """Scores on the tool waits: overall, without history, of the means, per agent and per tool."""
    at = tool_rows(records)
    plain = prepare_plain(predictor, [records.waits[i] for i in at])
    prepared = prepare_all(predictor, records, online)
    waits = [prepared[i] for i in at]
    actual = np.array(records.durations)[at]
    return {
        **score(actual, predictor.predict(waits)),
        "coverage_80": round(coverage(predictor, waits, actual), 4),
        "without_history": score(actual, predictor.predict(plain)),
        "mean": score(actual, predictor.expected_remaining(waits)),
        "mean_within_600s": score(actual, predictor.expected_remaining(waits, 0.0, 600.0)),
        "by_agent": detailed(predictor, waits, actual, [records.agents[i] for i in at]),
        "by_tool": detailed(predictor, waits, actual, [wait_name(records.waits[i]) for i in at]),
    }
