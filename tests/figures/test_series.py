"""A series keeps a metric of any length in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.errors import SettingError
from trainmaster.figures.series import Series, smoothed

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=80)


def filled(values: list[float], max_points: int = 8) -> Series:
    series = Series(max_points)
    series.extend(enumerate(values))
    return series


def test_few_values_are_kept_unchanged() -> None:
    assert [(point.x, point.mean, point.low, point.high) for point in filled([3.0, 1.0]).points()] == [
        (0, 3.0, 3.0, 3.0),
        (1, 1.0, 1.0, 1.0),
    ]


@given(VALUES)
def test_it_never_has_more_than_the_maximum_number_of_points_and_an_unfinished_one(values: list[float]) -> None:
    assert len(filled(values)) <= 8 + 1


@given(VALUES)
def test_the_means_include_every_value(values: list[float]) -> None:
    points = filled(values).points()
    assert sum(point.count for point in points) == len(values)
    assert sum(point.mean * point.count for point in points) == pytest.approx(sum(values), abs=1e-3)


@given(VALUES.filter(bool))
def test_minimum_and_maximum_are_kept(values: list[float]) -> None:
    points = filled(values).points()
    assert min(point.low for point in points) == min(values)
    assert max(point.high for point in points) == max(values)


@given(VALUES, st.integers(0, 80))
def test_a_restored_series_continues_identically(values: list[float], cut: int) -> None:
    restored = Series(8)
    restored.load_state_dict(filled(values[:cut]).state_dict())
    restored.extend(list(enumerate(values))[cut:])
    assert restored.points() == filled(values).points()


def test_fewer_than_two_points_are_refused() -> None:
    with pytest.raises(SettingError, match="`max_points` must be a whole number of at least 2, not 1"):
        Series(max_points=1)


def test_smoothing_begins_at_the_first_value() -> None:
    assert smoothed([5.0, 5.0, 5.0], 0.9) == pytest.approx([5.0, 5.0, 5.0])


def test_a_weight_of_0_does_not_smooth() -> None:
    assert smoothed([1.0, 4.0, 2.0], 0.0) == [1.0, 4.0, 2.0]


def test_a_value_that_is_not_finite_does_not_affect_later_values() -> None:
    one, gap, last = smoothed([1.0, math.nan, 1.0], 0.5)
    assert (one, math.isnan(gap), last) == (1.0, True, 1.0)
