"""Forecasts learning curves that stopped early, based on the finished curves in the same store.

An unfinished curve is compared with the finished curves whose beginnings are most similar to it. These curves show how
much the metric may still change. Each forecast has a band that should contain the final value. The band is calibrated
on the finished curves: each of them is cut at the same epoch and forecast from the others, and the errors of these
forecasts determine the width of the band. No model is fitted. There is no forecast if there are fewer than 20 finished
curves, or if no finished curve starts like the unfinished one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9
"""The share of bands that should contain the final value."""
MIN_CURVES = 20
"""The minimum number of finished curves for a forecast."""
MAX_CURVES = 300
"""The maximum number of finished curves to read. More curves would take more time without improving a forecast."""
_FLOOR = 0.1
"""This fraction of the typical disagreement is added to the disagreement of the most similar curves.

The width of a band is proportional to this sum. Without the added term, some bands would be too narrow.
"""

Curve = Mapping[float, float]
"""The values of a metric by epoch."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """The expected final value of a curve, a band around it, and how often the bands of finished curves contained their final values."""

    value: float
    low: float
    high: float
    num_curves: int
    """The number of finished curves that the forecast is based on."""
    coverage: float
    """The measured share of finished curves whose final value is inside the band computed from the other curves."""
    num_measured: int
    """The number of curves for which the coverage was measured."""
    held_out: str
    """What was left out, one at a time, to measure the coverage: a "setting" with all its seeds, or a "curve"."""

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class NoForecast:
    """The reason why there is no forecast for a curve."""

    reason: str


class FinishedCurves:
    """The curves of one metric in finished runs that were trained for the same number of epochs.

    Args:
        curves: the values of each finished run by epoch.
        groups: the name of each curve's setting. Runs that differ only in their seed have the same setting.
        target: the epoch of the final value.
    """

    def __init__(self, curves: Sequence[Curve], groups: Sequence[str], target: float) -> None:
        self.target = target
        complete = [(curve, group) for curve, group in zip(curves, groups, strict=True) if target in curve]
        used = [(curve, group) for curve, group in complete if all(map(math.isfinite, curve.values()))]
        self.num_not_finite = len(complete) - len(used)
        """The number of curves that are left out because they contain NaN or infinity."""
        self._curves = [curve for curve, _ in used[:MAX_CURVES]]
        self._groups = np.unique([group for _, group in used[:MAX_CURVES]], return_inverse=True)[1]
        self._bounds = _bounds(self._curves)
        self._calibrations: dict[tuple[float, ...], _Calibration | NoForecast] = {}

    def forecast(self, curve: Curve) -> Forecast | NoForecast:
        """Forecast the final value of a curve from its values so far."""
        prefix = sorted(epoch for epoch in curve if epoch < self.target)
        values = np.array([curve[epoch] for epoch in prefix])
        if not prefix:
            return NoForecast("it has no value yet")
        if not np.isfinite(values).all():
            return NoForecast("it contains NaN or infinity")
        calibration = self._calibrate(tuple(prefix))
        found = calibration if isinstance(calibration, NoForecast) else calibration.forecast(values)
        if isinstance(found, NoForecast):
            return found
        low, high = self._bounds
        return replace(found, **{name: min(max(getattr(found, name), low), high) for name in ("value", "low", "high")})

    def _calibrate(self, prefix: tuple[float, ...]) -> _Calibration | NoForecast:
        """Calibrate the forecasts for curves that have values at these epochs.

        The result is cached, because pruned curves often end at the same epoch.
        """
        if prefix not in self._calibrations:
            rows = [row for row, curve in enumerate(self._curves) if all(epoch in curve for epoch in prefix)]
            self._calibrations[prefix] = self._make_calibration(prefix, rows)
        return self._calibrations[prefix]

    def _make_calibration(self, prefix: tuple[float, ...], rows: list[int]) -> _Calibration | NoForecast:
        if len(rows) < MIN_CURVES:
            return NoForecast(f"{len(rows)} finished curves of this kind; a forecast needs {MIN_CURVES}")
        values = np.array([[self._curves[row][epoch] for epoch in (*prefix, self.target)] for row in rows])
        if np.ptp(values[:, -1]) == 0:
            return NoForecast("all finished curves of this kind end with the same value")
        return _Calibration(values[:, :-1], values[:, -1], self._groups[rows])


class _Calibration:
    """Finished curves that are cut at the same epoch, and the errors of forecasting each final value from the others."""

    def __init__(self, prefixes: Array, finals: Array, groups: NDArray[np.int64]) -> None:
        self._finals, self._gains = finals, finals - prefixes[:, -1]
        self._prefixes = prefixes
        spread = prefixes.std(axis=0)
        self._weights = 1.0 / np.where(spread > 0, spread, np.inf)
        """The weight of each epoch: the inverse of how much the curves differ at that epoch."""
        self._num_neighbors = max(5, round(math.sqrt(len(finals))))
        self._held_out = "setting" if len(np.unique(groups)) >= MIN_CURVES else "curve"
        units = groups if self._held_out == "setting" else np.arange(len(finals))
        distances = np.array([self._distances(prefix) for prefix in prefixes])
        distances[units[:, None] == units[None, :]] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")
        self._scores, self._reach, self._floor = self._score(order[:, : self._num_neighbors], distances)
        self._measure(order, distances, units)

    def _distances(self, prefix: Array) -> Array:
        distances: Array = np.sqrt((((self._prefixes - prefix) * self._weights) ** 2).mean(axis=1))
        return distances

    def _score(self, neighbors: NDArray[np.int64], distances: Array) -> tuple[Array, Array, float]:
        """Forecast each curve from its neighbors, and measure the errors.

        Returns three results: for each curve, its error divided by the disagreement of its neighbors; for each curve, the
        distance to its farthest neighbor; and the constant that was added to every disagreement, so that none is close to zero.
        """
        gains = self._gains[neighbors]
        disagreement = gains.std(axis=1, ddof=1)
        floor = _FLOOR * float(np.median(disagreement)) or 1e-12 * float(np.abs(self._finals).max())
        errors = np.abs(self._gains - np.median(gains, axis=1))
        return errors / (disagreement + floor), np.take_along_axis(distances, neighbors[:, -1:], axis=1)[:, 0], floor

    def _measure(self, order: NDArray[np.int64], distances: Array, units: NDArray[np.int64]) -> None:
        """Measure how often the final value of a curve is inside the band that was computed without this curve."""
        inside: list[bool] = []
        largest = int(np.bincount(units).max())
        near = order[:, : self._num_neighbors + largest]
        for unit in np.unique(units):
            own = units == unit
            is_other = units[near] != unit
            ranks = np.argsort(~is_other, axis=1, kind="stable")[:, : self._num_neighbors]
            scores, reach, _ = self._score(np.take_along_axis(near, ranks, axis=1), distances)
            is_like = reach[own] <= reach[~own].max()
            inside += (scores[own] <= _quantile(scores[~own]))[is_like].tolist()
        self._coverage, self._num_measured = float(np.mean(inside)) if inside else math.nan, len(inside)

    def forecast(self, values: Array) -> Forecast | NoForecast:
        distances = self._distances(values)
        neighbors = np.argsort(distances, kind="stable")[: self._num_neighbors]
        if distances[neighbors[-1]] > self._reach.max():
            return NoForecast("no finished curve began like this one")
        gains = self._gains[neighbors]
        value = float(values[-1] + np.median(gains))
        margin = _quantile(self._scores) * (float(gains.std(ddof=1)) + self._floor)
        return Forecast(value, value - margin, value + margin, len(self._finals), self._coverage, self._num_measured, self._held_out)


def _bounds(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the limits of a forecast: at least 0 if the metric was never negative, and at most 1 if it was always between 0 and 1."""
    values = [value for curve in curves for value in curve.values()]
    low = 0.0 if min(values, default=-1.0) >= 0 else -math.inf
    return low, 1.0 if low == 0.0 and max(values) <= 1 else math.inf


def _quantile(scores: Array) -> float:
    """Return a bound such that the next score is at or below it with probability `LEVEL`, if the scores are exchangeable."""
    rank = math.ceil(LEVEL * (len(scores) + 1))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf
