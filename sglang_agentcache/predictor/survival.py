"""Distributions of a wait on one common grid, and what eviction asks of them.

Every prepared wait is one row: P(T > t) on a grid of times that all rows share. Conditioning on the time
already elapsed, the mean time left and the discounted chance of a return are then a few vectorised lookups
per row.
"""

from __future__ import annotations

import numpy as np

#: Durations are learned as log10(seconds + OFFSET_S): 10 ms is the resolution that eviction could ever use.
OFFSET_S = 0.01
_STEP = 0.1
#: Log grid of the rows: from 0 s to 10^6 s (11.6 days).
LOG_GRID = np.arange(-2.0, 6.0 + _STEP / 2, _STEP)
TIME_GRID = 10.0**LOG_GRID - OFFSET_S
TIME_GRID[0] = 0.0
_WIDTHS = np.diff(TIME_GRID)
#: Weights of the grid points in an integral (trapezoids).
_AREAS = 0.5 * (np.append(_WIDTHS, 0.0) + np.insert(_WIDTHS, 0, 0.0))

#: Longest duration that is told apart from "never", seconds.
MAX_DURATION_S = float(TIME_GRID[-1])

# A small share of every row lies beyond what was ever seen, as a Pareto tail (exponent 1): a wait that has
# outlived all samples still has a time left, and it grows with the time already waited.
_TAIL_SHARE = 1e-4
_TAIL = np.minimum(1.0, 1.0 / np.maximum(TIME_GRID, 1e-9))
_TAIL[-1] = 0.0
_MAX_EXPONENT = 600.0
# Past the end of the grid nothing is known but that it takes long; the longer, the less likely.
_LEAST_CHANCE = 1e-9
#: The least time left, as a share of the time elapsed.
MIN_LEFT_SHARE = 0.05
#: And in seconds: rates stay finite.
MIN_LEFT_S = 1e-3


def log_seconds(duration_s: np.ndarray | float) -> np.ndarray:
    """log10(duration + OFFSET_S), clipped to the grid; NaN counts as 0 s."""
    clean = np.fmin(np.fmax(np.asarray(duration_s, dtype=np.float64), 0.0), MAX_DURATION_S)
    return np.asarray(np.log10(clean + OFFSET_S))


def seconds(log_duration: np.ndarray | float) -> np.ndarray:
    """The inverse of `log_seconds`."""
    return np.maximum(10.0 ** np.asarray(log_duration, dtype=np.float64) - OFFSET_S, 0.0)


def survival_row(cdf_log: np.ndarray, cdf: np.ndarray) -> np.ndarray:
    """Return P(T > t) on the grid, float64 [len(TIME_GRID)], for a distribution function given at points.

    Args:
        cdf_log: increasing log10 durations, float64 [k].
        cdf: P(T <= .) there, non-decreasing, float64 [k].
    """
    row = 1.0 - np.interp(LOG_GRID, cdf_log, cdf, left=0.0, right=1.0)
    row[0], row[-1] = 1.0, 0.0
    return row + _TAIL_SHARE * (_TAIL - row)


def quantile(rows: np.ndarray, share: np.ndarray | float) -> np.ndarray:
    """The ``share`` quantile (one, or float64 [n]) of every row in seconds: float64 [n, grid] -> [n]."""
    target = np.broadcast_to(1.0 - np.asarray(share, dtype=np.float64), len(rows))
    above = rows > target[:, None]
    at = np.clip(above.sum(axis=1) - 1, 0, len(TIME_GRID) - 2)
    pick = np.arange(len(rows))
    high, low = rows[pick, at], rows[pick, at + 1]
    part = np.clip((high - target) / np.maximum(high - low, 1e-12), 0.0, 1.0)
    return seconds(LOG_GRID[at] + part * _STEP)


def median_left(rows: np.ndarray, elapsed_s: np.ndarray) -> np.ndarray:
    """The median of T - e given T > e in seconds: float64 [n, grid], [n] -> [n]."""
    _, survivors = _condition(rows, elapsed_s)
    left = quantile(rows, 1.0 - 0.5 * survivors) - elapsed_s
    return np.maximum(left, np.maximum(MIN_LEFT_SHARE * elapsed_s, MIN_LEFT_S))


def mean_log_beyond(row: np.ndarray, elapsed_s: float) -> float:
    """E[log10(T + offset) | T > elapsed]: what a wait that was cut off at ``elapsed_s`` probably became."""
    start = float(log_seconds(elapsed_s))
    left = np.interp(start, LOG_GRID, row)
    mass = -np.diff(np.minimum(row, left))
    middle = np.maximum((LOG_GRID[1:] + LOG_GRID[:-1]) / 2, start)
    total = float(mass.sum())
    return float(mass @ middle) / total if total > 1e-12 else start + np.log10(2.0)


def mean_left(rows: np.ndarray, elapsed_s: np.ndarray, horizon_s: float | None = None) -> np.ndarray:
    """E[T - e | T > e] in seconds (CacheWise 5.2), or E[min(T - e, horizon) | T > e] with a horizon.

    rows float64 [n, grid], elapsed_s float64 [n] -> float64 [n].
    """
    area, survivors = _area_beyond(rows, elapsed_s)
    floor = np.maximum(MIN_LEFT_SHARE * elapsed_s, MIN_LEFT_S)
    if horizon_s is not None:
        area = area - _area_beyond(rows, elapsed_s + horizon_s)[0]
        floor = np.minimum(floor, horizon_s)
    return np.maximum(area / np.maximum(survivors, 1e-12), floor)


def return_index(rows: np.ndarray, elapsed_s: np.ndarray, delay_s: float) -> np.ndarray:
    """The best chance of a return per second of waiting for it: float64 [n, grid], [n] -> [n], per second.

    With R = T - e given T > e, the largest P(R <= h) / (E[min(R, h)] + delay) over all horizons h. Whoever keeps
    memory for a trajectory may give up at any h; this is what the best such plan pays per second of memory (the
    Gittins index). A constant R gives 1 / (R + delay), and so does an exponential one by its mean; where R is
    either short or very long, the short part counts until it has passed.
    """
    cell, survivors, partial = _rest_of_cell(rows, elapsed_s)
    passed = np.zeros_like(rows)  # the integral of P(T > t) up to each grid time
    np.cumsum((rows[:, 1:] + rows[:, :-1]) * (0.5 * _WIDTHS), axis=1, out=passed[:, 1:])
    until_now = passed[np.arange(len(rows)), cell + 1] - partial
    # Horizons that have passed already come out at 0 or below. In place: this is asked for all idle ones at once.
    back = survivors[:, None] - rows
    waited = np.subtract(passed, (until_now - delay_s * survivors)[:, None], out=passed)
    best = np.divide(back, np.maximum(waited, 1e-12, out=waited), out=back).max(axis=1)
    return np.asarray(np.maximum(best, _LEAST_CHANCE / (1.0 + elapsed_s)))


def _area_beyond(rows: np.ndarray, start_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the integral of P(T > t) over t > start, and P(T > start)."""
    cell, survivors, partial = _rest_of_cell(rows, start_s)
    after = rows[np.arange(len(rows)), cell + 1]
    # Level up to the cell's end: that part is known, and all rows share one vector of weights.
    level = np.minimum(rows, after[:, None])
    return level @ _AREAS - after * TIME_GRID[cell + 1] + partial, survivors


def _rest_of_cell(rows: np.ndarray, start_s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the grid cell, P(T > start), and the integral of P(T > t) from there to the cell's end."""
    cell, survivors = _condition(rows, start_s)
    after = rows[np.arange(len(rows)), cell + 1]
    return cell, survivors, 0.5 * (survivors + after) * np.maximum(TIME_GRID[cell + 1] - start_s, 0.0)


def discounted(rows: np.ndarray, elapsed_s: np.ndarray, tau_s: float) -> np.ndarray:
    """E[exp(-(T - e) / tau) | T > e], from 0 to 1: float64 [n, grid], [n] -> [n]."""
    cell, survivors = _condition(rows, elapsed_s)
    after = rows[np.arange(len(rows)), cell + 1]
    kept = np.minimum(rows, after[:, None])  # no mass before the cell's end
    mass = kept[:, :-1] - kept[:, 1:]
    # exp(e / tau) is taken out of the sum, so that all rows share one vector of weights; where that would
    # overflow, the rows are summed one by one.
    inside = _mean_discount(_WIDTHS / tau_s)
    scale = elapsed_s / tau_s
    value = (mass @ (np.exp(-TIME_GRID[:-1] / tau_s) * inside)) * np.exp(np.minimum(scale, _MAX_EXPONENT))
    for at in np.flatnonzero(scale > _MAX_EXPONENT).tolist():
        ahead = np.maximum(TIME_GRID[:-1] - elapsed_s[at], 0.0)
        value[at] = mass[at] @ (np.exp(-ahead / tau_s) * inside)
    rest_of_cell = _mean_discount(np.maximum(TIME_GRID[cell + 1] - elapsed_s, 0.0) / tau_s)
    value = (value + (survivors - after) * rest_of_cell) / np.maximum(survivors, 1e-12)
    return np.clip(value, _LEAST_CHANCE / (1.0 + elapsed_s), 1.0)


def _mean_discount(width: np.ndarray) -> np.ndarray:
    """The mean of exp(-x) over 0 <= x <= width."""
    safe = np.maximum(width, 1e-9)
    return -np.expm1(-safe) / safe


def _condition(rows: np.ndarray, elapsed_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid cell that each elapsed time lies in and P(T > elapsed)."""
    # No np.clip: on few rows its overhead is most of the time.
    cell = np.minimum(np.maximum(TIME_GRID.searchsorted(elapsed_s, side="right") - 1, 0), len(TIME_GRID) - 2)
    pick = np.arange(len(rows))
    part = np.minimum(np.maximum((elapsed_s - TIME_GRID[cell]) / _WIDTHS[cell], 0.0), 1.0)
    high, low = rows[pick, cell], rows[pick, cell + 1]
    return cell, high - part * (high - low)
