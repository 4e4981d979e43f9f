"""Axes: from where to where, and the numbers beside them.

They are found here, and not by matplotlib: so the space that the numbers take is known before anything is placed, which is what makes
drawing cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_HUGE, _TINY = 1e200, 1e-200
"""What is beyond is as infinite, or as 0: margins and the arithmetic of libraries need some room below the last floats."""
_LOG_FROM = 30.0
"""How many times the least value the greatest is where an axis becomes logarithmic."""
_FINEST = 1e-6
"""The least span of an axis, as a share of its numbers: these would be told apart by digits that nobody reads."""


@dataclass(frozen=True)
class Scale:
    """An axis: where it begins and ends, and its ticks."""

    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]
    is_log: bool = False

    def shares(self, values: Any) -> Numbers:
        """Where values lie between `low` (0) and `high` (1)."""
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            return np.asarray((np.log10(values) - low) / (high - low), dtype=np.float64)
        return np.asarray((np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low), dtype=np.float64)


def gapped(values: Any, is_log: bool = False) -> Numbers:
    """Values as an array with NaN for what cannot be drawn: what is not finite, and what is not above 0 on a logarithmic axis."""
    found = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(found) <= _HUGE)
        found[np.abs(found) < _TINY] = 0.0
        if is_log:
            bad |= ~(found >= _TINY)
    found[bad] = np.nan
    return found


def spans_much(values: Iterable[Numbers]) -> bool:
    """Whether values are better seen on a logarithmic axis."""
    found = _finite(values)
    return found.size > 0 and float(found.min()) >= _TINY and float(found.max()) >= _LOG_FROM * float(found.min())


def scale(values: Iterable[Numbers], is_log: bool = False, is_whole: bool = False, margin: float = 0.05, num_ticks: int = 6) -> Scale:
    """The axis that shows all values, with a margin as a share of its length; `is_whole` for ticks at whole numbers only."""
    found = _finite(values)
    if is_log:
        found = found[found >= _TINY]
        low, high = (float(found.min()), float(found.max())) if found.size else (0.1, 1.0)
        return log_scale(low, high, margin, num_ticks)
    low, high = (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)
    return linear_scale(low, high, is_whole, margin, num_ticks)


def linear_scale(low: float, high: float, is_whole: bool = False, margin: float = 0.05, num_ticks: int = 6) -> Scale:
    """
    >>> linear_scale(0, 10, margin=0).labels
    ['0', '2', '4', '6', '8', '10']
    """
    largest = max(abs(low), abs(high))
    if high - low <= _FINEST * largest or high == low:  # one value only: in the middle
        around = 1.0 if is_whole and largest < 1 / _FINEST else max(0.05 * largest, _TINY) if largest else 1.0
        low, high = low - around, high + around
    else:
        low, high = low - margin * (high - low), high + margin * (high - low)
    step = _step((high - low) / num_ticks)
    if is_whole:
        step = max(1.0, step)
    ticks = [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return Scale(low, high, ticks, _labels(ticks, step))


def log_scale(low: float, high: float, margin: float = 0.05, num_ticks: int = 6) -> Scale:
    """
    >>> log_scale(0.001, 1000, margin=0).labels
    ['0.001', '0.01', '0.1', '1', '10', '100', '1000']
    """
    first, last = math.log10(low), math.log10(high)
    if last - first < 1e-3:  # one value only: in the middle
        first, last = first - 0.5, last + 0.5
    else:
        first, last = first - margin * (last - first), last + margin * (last - first)
    low, high = 10.0**first, 10.0**last
    decades = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    if len(decades) >= 3:
        stride = math.ceil(len(decades) / (num_ticks + 2))
        ticks = [10.0**each for each in decades if each % stride == 0]
    else:
        around = range(math.floor(first), math.ceil(last) + 1)
        ticks = [digit * 10.0**each for each in around for digit in (1, 2, 5)]
        ticks = [each for each in ticks if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
    if len(ticks) >= 3:
        return Scale(low, high, ticks, [_short(each) for each in ticks], is_log=True)
    plain = linear_scale(low, high, margin=0, num_ticks=num_ticks)  # all within a factor of 10 or less
    return Scale(low, high, plain.ticks, plain.labels, is_log=True)


def are_whole(values: Iterable[Numbers]) -> bool:
    found = _finite(values)
    return bool((found == np.round(found)).all())


def _finite(values: Iterable[Numbers]) -> Numbers:
    found: Numbers = np.concatenate([np.zeros(0), *(np.ravel(each) for each in values)])
    return found[np.isfinite(found)]


def _step(least: float) -> float:
    """The next of ... 0.1, 0.2, 0.5, 1, 2, 5, 10 ... that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def _labels(ticks: Sequence[float], step: float) -> list[str]:
    """Ticks as short as they can be and still differ."""
    largest = max(map(abs, ticks), default=0.0)
    magnitude = math.floor(math.log10(step) + 1e-9)
    plain = [f"{each + 0.0:.{max(0, -magnitude)}f}" for each in ticks]
    if largest < 1e6 and step >= 1e-4:
        return plain
    num_decimals = max(0, math.floor(math.log10(largest) + 1e-9) - magnitude) if largest else 0
    powers = [_exponential(each, num_decimals) for each in ticks]
    return min(plain, powers, key=lambda labels: max(map(len, labels), default=0))


def _short(value: float) -> str:
    return f"{value:g}" if 1e-4 < value < 1e5 else _exponential(value, 0)


def _exponential(value: float, num_decimals: int) -> str:
    if value == 0:
        return "0"
    digits, power = f"{value:.{num_decimals}e}".split("e")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}e{int(power)}"
