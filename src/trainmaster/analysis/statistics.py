"""Intervals, differences and p-values for small numbers of runs, and the smallest differences that these runs can detect.

All functions use Student's t distribution. With 3 to 50 replicates, its intervals have the nominal coverage, whereas
bootstrap intervals do not. Numbers that cannot be computed are nan, for example the interval of a single value, of equal
values, or of values that include NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.arguments import check_int, check_number
from trainmaster.errors import MissingExtraError, SettingError, shown

ROUNDING = 5e-7
"""Values are treated as equal if their spread is at most this fraction of the largest value.

Metrics are often float32, and 0.95 - 0.90 differs from 0.85 - 0.80 only by rounding. Without this tolerance, equal
differences would have a tiny spread and an enormous t.
"""


@dataclass(frozen=True)
class Interval:
    """The mean of some values and its confidence interval.

    `low` and `high` are nan if there are fewer than two values, if all values are equal (their spread is then unknown,
    not zero), or if one of them is not finite. In the last case, `mean` and `sd` are also nan.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:.4g} (n={self.n}, no interval)"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] (n={self.n})"


@dataclass(frozen=True)
class Difference:
    """The mean difference a - b, its confidence interval and a two-sided p-value.

    Numbers that cannot be computed are nan.
    """

    n_a: int
    n_b: int
    mean: float
    low: float
    high: float
    p: float
    effect_size: float
    """The difference in units of the standard deviation, corrected for small samples.

    The unit is the standard deviation of the pairs' differences or, without pairs, the root mean square of the standard
    deviations of both groups.
    """
    method: str
    """`paired t` or `Welch`."""

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:+.4g} (no interval, {self.method}, n={self.n_a}, {self.n_b})"
        return f"{self.mean:+.4g} [{self.low:+.4g}, {self.high:+.4g}] (p={self.p:.2g}, {self.method}, n={self.n_a}, {self.n_b})"


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of `values` and the interval that contains the true mean with probability `level`.

    >>> print(mean_interval([0.91, 0.93, 0.92]))
    0.92 [0.8952, 0.9448] (n=3)
    """
    check_number("level", level, above=0, below=1)
    numbers = _floats("values", values)
    mean, sd = mean_and_sd(numbers)
    margin = t_quantile(len(numbers) - 1, level) * (sd / math.sqrt(len(numbers))) if has_spread(sd, numbers) else math.nan
    return Interval(len(numbers), mean, sd, mean - margin, mean + margin)


def paired_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Return the mean of a[i] - b[i], where a[i] and b[i] form a pair, such as two runs with the same seed."""
    check_number("level", level, above=0, below=1)
    first, second = _floats("a", a), _floats("b", b)
    n = len(first)
    if n != len(second):
        hint = "keep the values of shared seeds only, or use `welch_difference`"
        raise SettingError(f"a paired difference needs pairs, but `a` has {n} values and `b` has {len(second)}", hint=hint)
    differences = [one - two for one, two in zip(first, second, strict=True)]
    mean, sd = mean_and_sd(differences)
    if not has_spread(sd, [*first, *second]):
        return Difference(n, n, mean, math.nan, math.nan, math.nan, math.nan, "paired t")
    error, df = sd / math.sqrt(n), n - 1
    margin = t_quantile(df, level) * error
    return Difference(n, n, mean, mean - margin, mean + margin, t_p_value(mean / error, df), mean / sd * _small_sample(df), "paired t")


def welch_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Return the difference between the means of two independent groups, whose standard deviations may differ."""
    check_number("level", level, above=0, below=1)
    first, second = _floats("a", a), _floats("b", b)
    (mean_a, sd_a), (mean_b, sd_b) = mean_and_sd(first), mean_and_sd(second)
    n, m, mean = len(first), len(second), mean_a - mean_b
    if not (n > 1 and m > 1 and has_spread(max(sd_a, sd_b), [*first, *second])):
        return Difference(n, m, mean, math.nan, math.nan, math.nan, math.nan, "Welch")
    scale = max(sd_a, sd_b)  # scale the values first, because the squares of large values would overflow
    var_a, var_b = (sd_a / scale) ** 2, (sd_b / scale) ** 2
    error = scale * math.sqrt(var_a / n + var_b / m)
    df = (var_a / n + var_b / m) ** 2 / ((var_a / n) ** 2 / (n - 1) + (var_b / m) ** 2 / (m - 1))
    size = mean / scale / math.sqrt((var_a + var_b) / 2)
    size_df = (n - 1) * (m - 1) * (var_a + var_b) ** 2 / ((m - 1) * var_a**2 + (n - 1) * var_b**2)
    margin = t_quantile(df, level) * error
    return Difference(n, m, mean, mean - margin, mean + margin, t_p_value(mean / error, df), size * _small_sample(size_df), "Welch")


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of a family of tests by Holm's method, which controls the chance of any false discovery.

    A nan stays nan, but the adjustment counts it as one of the tests.

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = _floats("p_values", p_values)
    wrong = [p for p in given if not (math.isnan(p) or 0 <= p <= 1)]
    if wrong:
        raise SettingError(f"a p-value must be between 0 and 1, not {wrong[0]:g}")
    adjusted, highest = [math.nan] * len(given), 0.0
    for rank, index in enumerate(sorted(range(len(given)), key=lambda each: (math.isnan(given[each]), given[each]))):
        if not math.isnan(given[index]):
            highest = max(highest, min(1.0, (len(given) - rank) * given[index]))
            adjusted[index] = highest
    return adjusted


# ---- planning


def smallest_significant(n: int, comparisons: int = 1, level: float = 0.95) -> float:
    """Return how large the mean difference of `n` pairs must be for its interval to exclude zero.

    The result is in standard deviations of the pairs' differences. With several comparisons, the intervals are
    simultaneous. With fewer than 2 pairs, the result is infinity, because no difference can be detected.

    >>> round(smallest_significant(3, comparisons=6), 1)
    6.3
    """
    _check_design(n, comparisons, level)
    return t_quantile(n - 1, 1 - (1 - level) / comparisons) / math.sqrt(n) if n > 1 else math.inf


def smallest_detectable(n: int, comparisons: int = 1, level: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest true mean difference that `n` pairs detect with probability `power`.

    The result is in standard deviations of the pairs' differences.

    >>> round(smallest_detectable(10), 2)
    1.0
    """
    _check_design(n, comparisons, level)
    check_number("power", power, above=0, below=1)
    return smallest_enough(lambda difference: _power(n, difference, comparisons, level) < power, 50) if n > 1 else math.inf


def pairs_needed(difference: float, comparisons: int = 1, level: float = 0.95, power: float = 0.8) -> int:
    """Return how many pairs are needed to detect a true mean difference with probability `power`.

    The difference is in standard deviations of the pairs' differences.

    >>> pairs_needed(0.5)
    34
    """
    _check_design(2, comparisons, level)
    check_number("power", power, above=0, below=1)
    check_number("difference", difference, above=0)
    low, high = 1, 2
    while _power(high, difference, comparisons, level) < power:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _power(middle, difference, comparisons, level) < power else (low, middle)
    return high


def t_p_value(t: float, df: float) -> float:
    """Return the two-sided p-value of a t statistic."""
    return float(2 * _special().stdtr(df, -abs(t)))


# ---- building blocks


def smallest_enough(is_too_small: Callable[[float], bool], num_steps: int) -> float:
    """Find the smallest positive number for which `is_too_small` is False, by bisection. The result is rounded up.

    Each of the `num_steps` steps halves the rounding error.
    """
    low, high = 0.0, 1.0
    while is_too_small(high):
        high *= 2
    for _ in range(num_steps):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_small(middle) else (low, middle)
    return high


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, which is nan for a single value. Both are nan if a value is not finite."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = math.fsum(value / len(values) for value in values)  # divide first, because the sum of large values would overflow
    if len(values) == 1:
        return mean, math.nan
    return mean, math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)


def has_spread(sd: float, values: Sequence[float]) -> bool:
    """Return whether a standard deviation is larger than the rounding errors of the values."""
    return sd > ROUNDING * max(map(abs, values), default=0.0)  # False for nan


def _check_design(n: int, comparisons: int, level: float) -> None:
    check_int("n", n, min=0)
    check_int("comparisons", comparisons, min=1)
    check_number("level", level, above=0, below=1)


def _power(n: int, difference: float, comparisons: int, level: float) -> float:
    """Return the power of a t test with `n` pairs at level `1 - (1 - level) / comparisons`, counting only findings with the right sign."""
    return float(1 - _special().nctdtr(n - 1, difference * math.sqrt(n), t_quantile(n - 1, 1 - (1 - level) / comparisons)))


def t_quantile(df: float, level: float) -> float:
    """Return the critical |t| of an interval with this level."""
    return float(_special().stdtrit(df, (1 + level) / 2))


def _small_sample(df: float) -> float:
    """Return Hedges' correction factor. Without it, standardized differences of small samples are too large on average.

    The result is nan for one degree of freedom, where the correction is not defined.
    """
    if df <= 1:
        return math.nan
    return math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2) - math.log(df / 2) / 2)


def _floats(name: str, values: Any) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise SettingError(f"`{name}` must be a sequence of numbers, not {shown(values)}") from None


def _special() -> Any:
    try:
        import scipy.special
    except ImportError:
        raise MissingExtraError("statistics need SciPy: pip install 'trainmaster[analysis]'") from None
    return scipy.special
