"""Fits a straight line to points, with a 95 % confidence band."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainmaster.analysis.columns import Floats
from trainmaster.analysis.statistics import t_quantile

LEVEL = 0.95
_NUM_POINTS = 60


@dataclass(frozen=True)
class Fit:
    """A fitted line from the smallest to the largest x, with its confidence band."""

    xs: Floats
    ys: Floats
    low: Floats
    high: Floats
    r_squared: float


def fit_line(xs: Floats, ys: Floats, is_log_x: bool = False, is_log_y: bool = False) -> Fit | None:
    """Return the least-squares line, optionally on log scales. Return None if there are fewer than three points or all xs are equal."""
    x, y = np.log(xs) if is_log_x else xs, np.log(ys) if is_log_y else ys
    n, spread = len(x), float(np.sum((x - x.mean()) ** 2)) if len(x) else 0.0
    if n < 3 or spread == 0 or not math.isfinite(spread):
        return None
    slope = float(np.sum((x - x.mean()) * (y - y.mean()))) / spread
    residual = float(np.sum((y - y.mean() - slope * (x - x.mean())) ** 2))
    total = float(np.sum((y - y.mean()) ** 2))
    at = np.linspace(x.min(), x.max(), _NUM_POINTS)
    line = y.mean() + slope * (at - x.mean())
    margin = t_quantile(n - 2, LEVEL) * math.sqrt(residual / (n - 2)) * np.sqrt(1 / n + (at - x.mean()) ** 2 / spread)
    original = np.exp if is_log_y else np.asarray
    scaled = np.exp(at) if is_log_x else at
    return Fit(scaled, original(line), original(line - margin), original(line + margin), 1 - residual / total if total > 0 else math.nan)
