"""SVG figures are valid XML, draw nothing outside their area, and have gaps for missing numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster.figures.svg import (
    Curve,
    Whisker,
    draw_bar,
    draw_curves,
    draw_interval,
    draw_interval_axis,
    format_ticks,
    interval_scale,
    linear_ticks,
    make_scale,
    thin_out,
)

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def numbers_in(svg: str) -> list[float]:
    paths = [path for element in parse(svg).iter() if (path := element.get("d"))]
    return [float(each) for path in paths for each in re.findall(r"-?\d+(?:\.\d+)?", path)]


def lines_in(svg: str) -> list[str]:
    return [element.get("d", "") for element in parse(svg).iter() if "line" in element.get("class", "").split()]


@given(st.lists(NUMBERS, max_size=30), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30))
@example([1.0, 2.225073858507203e-309], [])
@example([1e-5, 9e299], [])
def test_any_numbers_give_valid_xml_inside_the_figure(values: list[float], band: list[tuple[float, float]]) -> None:
    xs = range(len(values))
    curves = [Curve("a", xs, values), Curve("b", range(len(band)), [0.0] * len(band), [a for a, _ in band], [b for _, b in band])]
    drawn = draw_curves(curves, "epoch", "figure")
    assert all(math.isfinite(each) and -1 <= each <= 481 for each in numbers_in(drawn))


def test_a_missing_value_leaves_a_gap() -> None:
    drawn = draw_curves([Curve("a", [0, 1, 2, 3, 4], [1.0, 2.0, math.nan, 2.0, 1.0])], "epoch", "figure")
    assert lines_in(drawn)[0].count("M") == 2


def test_texts_are_escaped() -> None:
    evil = "</title></svg><script>alert(1)</script>\x1b\u202e"
    drawn = draw_curves([Curve(evil, [0, 1], [1.0, 2.0])], evil, evil, [Whisker(1, 1.5, 1.0, 2.0, evil)])
    assert "<script" not in drawn
    assert drawn.isprintable()
    assert any(evil.split("\x1b")[0] in (element.text or "") for element in parse(drawn).iter())


def test_losses_of_very_different_size_are_drawn_on_a_log_scale() -> None:
    assert "log scale" in draw_curves([Curve("a", [0, 1], [10.0, 0.01])], "epoch", "figure")
    assert "log scale" not in draw_curves([Curve("a", [0, 1], [10.0, 1.0])], "epoch", "figure")
    assert "log scale" not in draw_curves([Curve("a", [0, 1], [10.0, -0.01])], "epoch", "figure")


def test_a_band_that_extends_below_zero_has_a_linear_scale() -> None:
    drawn = draw_curves([Curve("a", [0, 1], [10.0, 0.01], [9.0, -0.5], [11.0, 0.2])], "epoch", "figure")
    assert "log scale" not in drawn


def test_a_single_value_is_a_point() -> None:
    drawn = draw_curves([Curve("a", [3], [1.0])], "epoch", "figure")
    assert not lines_in(drawn)
    assert any(element.tag.endswith("circle") for element in parse(drawn).iter())


def test_a_long_curve_keeps_its_peaks_and_its_ends() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    points[4321] = (4321.0, 7.0)
    kept = thin_out(points)
    assert len(kept) <= 480
    assert (4321.0, 7.0) in kept
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_an_interval_without_bounds_is_a_point_and_a_missing_value_is_not_drawn() -> None:
    scale = interval_scale([0.0, 1.0])
    assert "whisker" in draw_interval(scale, 0.5, 0.4, 0.6)
    assert "whisker" not in draw_interval(scale, 0.5, math.nan, math.nan)
    assert "circle" in draw_interval(scale, 0.5, math.nan, math.nan)
    assert "circle" not in draw_interval(scale, math.nan, math.nan, math.nan)


def test_equal_values_have_a_scale_and_an_axis() -> None:
    for value in (0.0, 5.0, -3.0, 1e-30, 1e200):
        scale = interval_scale([value, value])
        assert scale.low < value < scale.high
        assert parse(draw_interval_axis(scale)).findall(".//{*}text") or parse(draw_interval_axis(scale)).findall(".//text")


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_a_bar_stays_in_its_strip(share: float) -> None:
    bar = parse(draw_bar(share))[0]
    assert 0 <= float(bar.get("width", "-1")) <= 240


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(2, 8))
def test_ticks_are_inside_the_scale_and_their_texts_differ(low: float, span: float, count: int) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return  # the ticks would be equal as floats
    ticks = linear_ticks(low, high, count)
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in ticks)
    assert len({*format_ticks(ticks)}) == len(ticks)


def test_a_scale_ignores_values_that_cannot_be_drawn() -> None:
    scale = make_scale([math.nan, math.inf, 1e308, 1.0, 2.0], 0, 100)
    assert 0.5 < scale.low < 1.0 < 2.0 < scale.high < 2.5
