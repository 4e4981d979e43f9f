"""Statistics agree with SciPy and statsmodels, and are nan if they cannot be computed."""

from __future__ import annotations

import math

import numpy
import pytest

from trainmaster.analysis import (
    holm,
    mean_interval,
    paired_difference,
    pairs_needed,
    smallest_detectable,
    smallest_significant,
    welch_difference,
)
from trainmaster.errors import SettingError

A = [0.9312, 0.9287, 0.9401, 0.9355, 0.9290, 0.9333]
B = [0.9250, 0.9291, 0.9302, 0.9310, 0.9244, 0.9301]


@pytest.mark.parametrize("n", [2, 3, 5, 6])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_the_interval_of_a_mean_equals_that_of_scipy(n: int, level: float) -> None:
    from scipy import stats

    found = mean_interval(A[:n], level)
    expected = stats.ttest_1samp(A[:n], 0).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert (found.n, found.mean, found.sd) == (n, pytest.approx(numpy.mean(A[:n])), pytest.approx(numpy.std(A[:n], ddof=1)))


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_a_paired_difference_equals_that_of_scipy(n: int, level: float) -> None:
    from scipy import stats

    found, test = paired_difference(A[:n], B[:n], level), stats.ttest_rel(A[:n], B[:n])
    expected = test.confidence_interval(level)
    assert (found.mean, found.p) == pytest.approx((numpy.mean(A[:n]) - numpy.mean(B[:n]), test.pvalue), rel=1e-9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert (found.n_a, found.n_b, found.method) == (n, n, "paired t")


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 6), (6, 4)])
def test_a_difference_of_groups_equals_that_of_scipy_and_statsmodels(n: int, m: int) -> None:
    from scipy import stats
    from statsmodels.stats.weightstats import CompareMeans

    found = welch_difference(A[:n], B[:m])
    test = stats.ttest_ind(A[:n], B[:m], equal_var=False)
    low, high = CompareMeans.from_data(A[:n], B[:m]).tconfint_diff(usevar="unequal")
    assert (found.p, found.low, found.high) == pytest.approx((test.pvalue, low, high), rel=1e-9)
    assert (found.n_a, found.n_b, found.method) == (n, m, "Welch")


def test_effect_sizes_are_corrected_for_small_samples() -> None:
    from scipy.special import gamma

    differences = numpy.subtract(A, B)
    correction = gamma(5 / 2) / (math.sqrt(5 / 2) * gamma(4 / 2))
    assert paired_difference(A, B).effect_size == pytest.approx(differences.mean() / differences.std(ddof=1) * correction)
    spread = math.sqrt((numpy.var(A, ddof=1) + numpy.var(B, ddof=1)) / 2)
    assert 0.9 * (numpy.mean(A) - numpy.mean(B)) / spread < welch_difference(A, B).effect_size < (numpy.mean(A) - numpy.mean(B)) / spread
    assert math.isnan(paired_difference(A[:2], B[:2]).effect_size), "two pairs: the correction would be 0"


@pytest.mark.parametrize("p_values", [[0.01], [0.01, 0.04, 0.03], [0.2, 0.0001, 0.04, 0.04, 0.9, 0.011], [0.5, 0.5, 1.0], []])
def test_adjusted_p_values_equal_those_of_statsmodels(p_values: list[float]) -> None:
    from statsmodels.stats.multitest import multipletests

    expected = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm(p_values) == pytest.approx(list(expected))


def test_a_nan_p_value_stays_nan_and_counts_as_a_test() -> None:
    first, second, third = holm([0.01, math.nan, 0.02])
    assert (first, third) == (pytest.approx(0.03), pytest.approx(0.04))
    assert math.isnan(second)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_a_p_value_outside_of_0_and_1_is_refused(p: float) -> None:
    with pytest.raises(SettingError, match="a p-value must be between 0 and 1"):
        holm([0.5, p])


@pytest.mark.parametrize(
    "values",
    [[], [0.9], [0.9, 0.9, 0.9], [0.9, math.nan], [0.9, math.inf, 0.8], [float(numpy.float32(0.1)), 0.1, 0.1]],
    ids=["none", "one", "equal", "nan", "inf", "equal but for float32"],
)
def test_there_is_no_interval_without_spread(values: list[float]) -> None:
    found = mean_interval(values)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(found.mean) == (not values or not all(map(math.isfinite, values))), "a NaN is never dropped"
    assert "no interval" in str(found)


def test_differences_that_only_differ_by_rounding_have_no_interval() -> None:
    a, b = [0.95, 0.85, 0.75, 0.65, 0.55], [0.90, 0.80, 0.70, 0.60, 0.50]
    assert len({one - two for one, two in zip(a, b, strict=True)}) > 1
    found = paired_difference(a, b)
    assert found.mean == pytest.approx(0.05)
    assert math.isnan(found.p)
    assert math.isnan(found.low)
    exact = [float(numpy.float32(value)) for value in a], [float(numpy.float32(value)) for value in b]
    assert math.isnan(paired_difference(*exact).p)


def test_small_differences_of_large_values_are_not_rounding() -> None:
    assert paired_difference([100.001, 100.002, 100.004], [100, 100, 100]).p < 1


def test_two_groups_need_a_spread_in_at_least_one_of_them() -> None:
    assert math.isnan(welch_difference([0.9, 0.9], [0.8, 0.8]).p)
    assert math.isnan(welch_difference([0.9], [0.8, 0.7]).p)
    assert welch_difference([0.9, 0.9, 0.9], [0.8, 0.7, 0.75]).p < 0.05


def test_huge_values_do_not_overflow() -> None:
    assert mean_interval([1e308, 1.5e308]).mean == pytest.approx(1.25e308)
    assert welch_difference([1e200, 2e200], [1e200, 3e200]).p == pytest.approx(welch_difference([1, 2], [1, 3]).p)


def test_a_paired_difference_needs_equally_many_values() -> None:
    with pytest.raises(SettingError, match="`a` has 3 values and `b` has 2") as caught:
        paired_difference([1, 2, 3], [1, 2])
    assert "welch_difference" in str(caught.value)


@pytest.mark.parametrize("level", [0, 1, 95, math.nan, "0.95"])
def test_an_invalid_level_is_refused(level: float) -> None:
    with pytest.raises(SettingError, match="`level` must be a number above 0 and below 1"):
        mean_interval(A, level)


def test_values_must_be_numbers() -> None:
    with pytest.raises(SettingError, match="`values` must be a sequence of numbers"):
        mean_interval(["a", "b"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("difference", "power", "pairs"),
    [
        (0.3, 0.8, 90),
        (0.4, 0.8, 52),
        (0.5, 0.8, 34),
        (0.6, 0.8, 24),
        (0.8, 0.8, 15),
        (1.0, 0.8, 10),
        (1.25, 0.8, 8),
        (0.3, 0.9, 119),
        (1.0, 0.9, 13),
    ],
)
def test_the_number_of_pairs_matches_the_noncentral_t_test(difference: float, power: float, pairs: int) -> None:
    assert pairs_needed(difference, power=power) == pairs


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_the_smallest_detectable_difference_equals_that_of_statsmodels(n: int) -> None:
    from statsmodels.stats.power import TTestPower

    expected = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8, alternative="two-sided")
    assert smallest_detectable(n) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("n", "smallest"), [(3, 6.3), (5, 2.2), (8, 1.3)])
def test_six_parts_and_few_seeds_can_only_detect_large_contributions(n: int, smallest: float) -> None:
    assert smallest_significant(n, comparisons=6) == pytest.approx(smallest, abs=0.05)
    assert smallest_detectable(n, comparisons=6) > smallest_significant(n, comparisons=6)


@pytest.mark.parametrize("n", [0, 1])
def test_one_pair_cannot_detect_anything(n: int) -> None:
    assert smallest_significant(n) == smallest_detectable(n) == math.inf
