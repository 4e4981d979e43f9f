"""Axes: from where to where, and the numbers beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.figures.scale import gapped, linear_scale, log_scale, scale, spans_much

VALUES = st.lists(st.floats(), max_size=10)


@given(VALUES, st.booleans(), st.booleans())
def test_every_value_that_can_be_drawn_lies_on_the_axis(values: list[float], is_log: bool, is_whole: bool) -> None:
    drawn = gapped(values, is_log)
    axis = scale([drawn], is_log, is_whole)
    assert -math.inf < axis.low < axis.high < math.inf
    assert all(axis.low <= value <= axis.high for value in drawn[np.isfinite(drawn)])


@given(VALUES, st.booleans())
def test_the_numbers_of_an_axis_differ_and_are_few(values: list[float], is_log: bool) -> None:
    axis = scale([gapped(values, is_log)], is_log)
    assert len({*axis.labels}) == len(axis.labels) == len(axis.ticks) <= 15
    assert all(len(label) <= 14 for label in axis.labels)


@given(VALUES, st.booleans())
def test_a_number_says_where_its_tick_is(values: list[float], is_log: bool) -> None:
    axis = scale([gapped(values, is_log)], is_log)
    width = axis.high - axis.low
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        assert float(label) == pytest.approx(tick, rel=1e-6, abs=width * 0.01)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 50_000, ["0", "10000", "20000", "30000", "40000", "50000"]),
        (0, 1e30, ["0", "2e29", "4e29", "6e29", "8e29", "1e30"]),
        (-2e-5, 2e-5, ["-2e-5", "-1e-5", "0", "1e-5", "2e-5"]),
        (2_000_000, 2_000_004, ["2000000", "2000001", "2000002", "2000003", "2000004"]),
        (0.99996, 1.0, ["0.99996", "0.99997", "0.99998", "0.99999", "1.00000"]),
    ],
)
def test_numbers_are_short(low: float, high: float, labels: list[str]) -> None:
    assert linear_scale(low, high, margin=0).labels == labels


def test_epochs_have_whole_numbers() -> None:
    assert linear_scale(1, 2, is_whole=True).labels == ["1", "2"]


def test_one_epoch_is_in_the_middle() -> None:
    axis = linear_scale(5, 5, is_whole=True)
    assert (axis.low, axis.high, axis.labels) == (4, 6, ["4", "5", "6"])


def test_a_constant_is_in_the_middle() -> None:
    axis = linear_scale(0.5, 0.5)
    assert (axis.low + axis.high) / 2 == 0.5


def test_a_logarithmic_axis_of_many_decades_leaves_some_out() -> None:
    assert log_scale(1e-10, 1e10).labels == ["1e-9", "1e-6", "0.001", "1", "1000", "1e6", "1e9"]


def test_a_logarithmic_axis_of_one_decade_has_numbers_too() -> None:
    assert log_scale(2.5, 9.0).labels == ["4", "6", "8"]


def test_shares_are_of_the_length_of_the_axis() -> None:
    assert log_scale(1, 100, margin=0).shares([1, 10, 100]).tolist() == [0.0, 0.5, 1.0]
    assert linear_scale(0, 4, margin=0).shares([0, 1, 4]).tolist() == [0.0, 0.25, 1.0]


def test_what_is_not_above_0_is_a_gap_on_a_logarithmic_axis() -> None:
    assert np.isnan(gapped([1.0, 0.0, -1.0, math.inf, math.nan], is_log=True)).tolist() == [False, True, True, True, True]
    assert np.isnan(gapped([1.0, 0.0, -1.0, math.inf, math.nan])).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(("values", "much"), [([1.0, 30.0], True), ([1.0, 29.0], False), ([0.0, 30.0], False), ([], False)])
def test_values_far_apart_span_much(values: list[float], much: bool) -> None:
    assert spans_much([np.array(values)]) is much
