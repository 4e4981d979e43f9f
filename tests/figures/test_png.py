"""PNG figures have the right content, and it is visible."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from trainmaster.figures.colors import COLORS, MARK_COLOR
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line, Lines, Panel
from trainmaster.figures.png import draw, png, rows_to_name

XS = list(range(100))
LOSS = Lines("loss", "epoch", "loss", [Line("train", [1, 2, 3], [3.0, 2.0, 1.0]), Line("valid", [1, 2, 3], [3.5, 2.5, 2.0])])
NORMS = HeatMap("norms", "step", "norm", [0, 10, 20], ["a", "b"], np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
TIMES = Bars("times", "ms", ["a", "b", "c"], [1.0, math.nan, 3.0], marks={"c": "slow"})
COUNTS = Histogram("losses", "value", "samples", {"train": [1, 5, 2], "valid": [0, 2, 3]}, [0.0, 1.0, 2.0, 3.0])
EMPTY: list[Panel] = [
    Lines("no lines", "epoch", "loss", []),
    Lines("no points", "epoch", "loss", [Line("a", [], [])]),
    Lines("no numbers", "epoch", "loss", [Line("a", [1, 2], [math.nan, math.inf])]),
    Lines("none above 0", "epoch", "loss", [Line("a", [1, 2], [0.0, -1.0])], is_log=True),
    HeatMap("no rows", "step", "norm", [], [], np.zeros((0, 0))),
    HeatMap("no numbers", "step", "norm", [0], ["a"], np.array([[math.nan]])),
    Bars("no bars", "ms", [], []),
    Bars("none above 0", "ms", ["a"], [0.0], is_log=True),
    Histogram("no counts", "value", "samples", {}, []),
    Histogram("no edges", "value", "samples", {"a": [1]}, [math.nan, 1.0]),
]


def lines(*found: Line, is_log: bool | None = None) -> Lines:
    return Lines("title", "x", "y", found, is_log)


def pixels(figure: Figure) -> Any:
    return imread(io.BytesIO(png(figure)))[..., :3]


def share_of(color: str, figure: Figure) -> float:
    """Return the share of a figure's pixels that have this color."""
    return float((np.abs(pixels(figure) - to_rgba(color)[:3]) < 0.02).all(axis=-1).mean())


def labels(axes: Any) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def row_names(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def colors_of(axes: Any) -> Any:
    """Return the colors of a heat map, one for each value."""
    (image,) = axes.images
    return image.to_rgba(image.get_array(), bytes=True)


def rows(count: int) -> list[str]:
    return [f"encoder.layers.{number}.attention.query.weight" for number in range(count)]


class TestLines:
    def test_axes_title_and_legend_are_named(self) -> None:
        (axes,) = draw([LOSS], "run ab12").axes
        assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("loss", "epoch", "loss")
        assert labels(axes) == ["train", "valid"]

    def test_the_title_of_the_figure_is_above(self) -> None:
        assert draw([LOSS], "run ab12").get_suptitle() == "run ab12"

    def test_every_point_lies_within_the_limits(self) -> None:
        (axes,) = draw([LOSS]).axes
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        assert 0.9 < left < 1 < 3 < right < 3.1
        assert 0.8 < low < 1 < 3.5 < high < 3.7

    @pytest.mark.parametrize("shown", ["title", "y", ""])
    def test_a_single_line_whose_name_is_shown_elsewhere_has_no_legend(self, shown: str) -> None:
        (axes,) = draw([lines(Line(shown, [0, 1], [1.0, 2.0]))]).axes
        assert labels(axes) == []

    def test_a_single_line_with_another_name_has_a_legend(self) -> None:
        (axes,) = draw([lines(Line("train", [0, 1], [1.0, 2.0]))]).axes
        assert labels(axes) == ["train"]

    def test_the_legend_is_beside_the_axes_and_inside_the_figure(self) -> None:
        figure = draw([lines(*[Line(f"line {number}", [0, 1], [1.0, 2.0]) for number in range(12)])], "run")
        png(figure)
        (axes,) = figure.axes
        legend = axes.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
        assert axes.get_window_extent().x1 <= box.x0 < box.x1 <= figure.bbox.x1

    def test_a_legend_with_many_entries_is_shortened(self) -> None:
        (axes,) = draw([lines(*[Line(f"line {number}", [0], [1.0]) for number in range(40)])]).axes
        assert len(axes.get_lines()) == 40
        assert labels(axes)[-2:] == ["line 23", "... and 16 more"]

    def test_a_label_that_begins_with_an_underscore_is_in_the_legend(self) -> None:
        (axes,) = draw([lines(Line("_a", [0], [1.0]), Line("b", [0], [1.0]))]).axes
        assert labels(axes) == ["_a", "b"]

    def test_twelve_lines_all_look_different(self) -> None:
        (axes,) = draw([lines(*[Line(str(number), [0, 1], [1.0, number]) for number in range(12)])]).axes
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}) == 12

    @pytest.mark.parametrize(
        ("is_log", "values", "scale"),
        [(None, [1.0, 100.0], "log"), (None, [1.0, 2.0], "linear"), (True, [1.0, 2.0], "log"), (False, [1.0, 100.0], "linear")],
    )
    def test_the_scale_is_the_requested_one_or_depends_on_the_values(self, is_log: bool | None, values: list[float], scale: str) -> None:
        (axes,) = draw([lines(Line("a", [0, 1], values), is_log=is_log)]).axes
        assert axes.get_yscale() == scale

    @pytest.mark.parametrize("highest", [1.5, 5.0, 1000.0, 1e30])
    def test_a_log_axis_of_any_range_has_labels(self, highest: float) -> None:
        figure = draw([lines(Line("a", [0, 1], [1.1, highest]), is_log=True)])
        png(figure)
        (axes,) = figure.axes
        low, high = axes.get_ylim()
        ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
        assert [tick for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]

    def test_values_that_are_not_positive_leave_a_gap_on_a_log_axis(self) -> None:
        (axes,) = draw([lines(Line("a", [0, 1, 2, 3], [1.0, 0.0, -1.0, 2.0]), is_log=True)]).axes
        assert np.isnan(np.asarray(axes.get_lines()[0].get_ydata(), dtype=float)).tolist() == [False, True, True, False]

    def test_a_single_point_is_visible(self) -> None:
        assert share_of(COLORS[0], draw([lines(Line("y", [1], [0.5]))])) > 0.00002

    def test_a_point_between_gaps_of_a_long_line_is_visible(self) -> None:
        ys = [math.nan] * 100
        assert share_of(COLORS[0], draw([lines(Line("y", XS, ys))])) == 0
        ys[50] = 0.5
        assert share_of(COLORS[0], draw([lines(Line("y", XS, ys))])) > 0.00002

    def test_a_band_is_around_its_line(self) -> None:
        (axes,) = draw([lines(Line("a", [0, 1], [1.0, 2.0], low=[0.0, 1.0], high=[3.0, 4.0]))]).axes
        (band,) = axes.collections
        (path,) = band.get_paths()
        assert (path.vertices[:, 1].min(), path.vertices[:, 1].max()) == (0.0, 4.0)
        assert axes.get_ylim()[1] > 4

    def test_a_band_that_goes_below_0_ends_at_the_bottom_of_a_log_axis(self) -> None:
        (axes,) = draw([lines(Line("a", [0, 1], [1.0, 2.0], low=[-1.0, 1.0], high=[3.0, 4.0]), is_log=True)]).axes
        (path,) = axes.collections[0].get_paths()
        low, high = axes.get_ylim()
        assert path.vertices[:, 1].min() == -1  # a log scale draws it beyond the lower end of the axis
        assert 0.9 < low < 1 < 4 < high < 4.5

    def test_a_faint_line_is_pale_has_the_same_color_and_is_not_in_the_legend(self) -> None:
        found = [Line("a", [0, 1], [1.0, 2.0], is_faint=True), Line("b", [0, 1], [1.0, 3.0], is_faint=True)]
        found += [Line("a", [0, 1], [1.0, 2.0]), Line("b", [0, 1], [1.0, 3.0])]
        (axes,) = draw([lines(*found)]).axes
        colors = [line.get_color() for line in axes.get_lines()]
        assert colors == [COLORS[0], COLORS[1], COLORS[0], COLORS[1]]
        assert [line.get_alpha() for line in axes.get_lines()] == [0.3, 0.3, 1.0, 1.0]
        assert labels(axes) == ["a", "b"]

    def test_the_ticks_of_epochs_are_whole_numbers(self) -> None:
        (axes,) = draw([lines(Line("a", [1, 2], [1.0, 2.0]))]).axes
        assert all(tick == round(tick) for tick in axes.get_xticks())


class TestHeatMap:
    def test_rows_are_named_from_top_to_bottom(self) -> None:
        axes, bar = draw([NORMS]).axes
        assert row_names(axes) == ["a", "b"]
        assert axes.get_ylim() == (1.5, -0.5)
        assert (axes.get_xlabel(), bar.get_ylabel()) == ("step", "norm")

    def test_columns_are_centered_on_their_steps(self) -> None:
        axes, _ = draw([NORMS]).axes
        assert axes.get_xlim() == (-5.0, 25.0)

    def test_the_smallest_value_is_dark_and_the_largest_is_bright(self) -> None:
        axes, _ = draw([NORMS]).axes
        colors = colors_of(axes)
        assert colors[0, 0].tolist() == [68, 1, 84, 255]
        assert colors[1, 2].tolist() == [253, 231, 36, 255]

    def test_the_colors_of_a_log_heat_map_are_spaced_logarithmically(self) -> None:
        panel = HeatMap("norms", "step", "norm", [0, 1, 2], ["a"], np.array([[1e-8, 1e-4, 1.0]]), is_log=True)
        axes, bar = draw([panel]).axes
        assert colors_of(axes)[0, 1][:3].tolist() == [32, 144, 140]  # the middle of the color map viridis
        assert bar.get_yscale() == "log"

    def test_values_that_are_not_finite_are_blank(self) -> None:
        panel = HeatMap("norms", "step", "norm", [0, 1, 2, 3], ["a"], np.array([[1.0, math.nan, math.inf, 2.0]]))
        colors = colors_of(draw([panel]).axes[0])
        assert colors[0, :, 3].tolist() == [255, 0, 0, 255]

    def test_columns_of_uneven_steps_have_different_widths(self) -> None:
        panel = HeatMap("norms", "step", "norm", [0, 1, 9], ["a"], np.array([[1.0, math.nan, 2.0]]))
        axes, _ = draw([panel]).axes
        assert axes.get_xlim() == (-0.5, 13.0)
        found = pixels(axes.figure)
        place = axes.get_window_extent()
        middle = found[found.shape[0] - int((place.y0 + place.y1) / 2), int(place.x0) + 3 : int(place.x1) - 3]
        assert (middle == 1).all(axis=-1).mean() == pytest.approx(4.5 / 13.5, abs=0.01)

    def test_steps_are_sorted(self) -> None:
        panel = HeatMap("norms", "step", "norm", [2, 0, 1], ["a"], np.array([[math.nan, 1.0, 2.0]]))
        colors = colors_of(draw([panel]).axes[0])
        assert colors[0, :, 3].tolist() == [255, 255, 0]

    def test_a_mark_is_left_of_its_name_in_another_color(self) -> None:
        panel = HeatMap("norms", "step", "norm", [0], ["first", "second"], np.ones((2, 1)), marks={"second": "vanishing"})
        figure = draw([panel])
        png(figure)
        axes = figure.axes[0]
        first, second = axes.get_yticklabels()
        assert (first.get_text(), first.get_color()) == ("first", "black")
        assert (second.get_text(), second.get_color()) == ("vanishing  second", MARK_COLOR)
        assert second.get_window_extent().x0 >= 0
        assert second.get_window_extent().x1 == pytest.approx(first.get_window_extent().x1)

    def test_the_height_grows_up_to_a_limit(self) -> None:
        heights = [draw([HeatMap("", "", "", [0], rows(count), np.ones((count, 1)))]).get_figheight() for count in (3, 30, 60, 150)]
        assert heights[0] <= 2 < 5 < heights[1] < heights[2] == heights[3] < 10


class TestBars:
    def test_bars_are_named_from_top_to_bottom(self) -> None:
        (axes,) = draw([TIMES]).axes
        assert row_names(axes) == ["a", "b", "slow  c"]
        assert axes.get_ylim() == (2.5, -0.5)
        assert (axes.get_title(), axes.get_xlabel()) == ("times", "ms")

    def test_a_bar_extends_from_0_to_its_value_and_is_missing_if_that_is_not_finite(self) -> None:
        (axes,) = draw([TIMES]).axes
        np.testing.assert_equal([(bar.get_x(), bar.get_width()) for bar in axes.patches], [(0, 1), (0, math.nan), (0, 3)])
        assert axes.get_xlim()[0] == 0

    def test_bars_of_negative_values_extend_to_the_left(self) -> None:
        (axes,) = draw([Bars("", "", ["a", "b"], [-2.0, -1.0])]).axes
        assert axes.get_xlim() == (pytest.approx(-2.06), 0.0)

    def test_a_marked_bar_has_the_color_of_its_mark(self) -> None:
        (axes,) = draw([TIMES]).axes
        assert [bar.get_facecolor() for bar in axes.patches] == [to_rgba(COLORS[0]), to_rgba(COLORS[0]), to_rgba(MARK_COLOR)]
        assert share_of(MARK_COLOR, axes.figure) > 0.02

    def test_a_log_axis_omits_0(self) -> None:
        (axes,) = draw([Bars("", "", ["a", "b", "c"], [1.0, 0.0, 1000.0], is_log=True)]).axes
        assert axes.get_xscale() == "log"
        assert [bool(np.isfinite(bar.get_width())) for bar in axes.patches] == [True, False, True]
        assert 0 < axes.get_xlim()[0] < 1

    @pytest.mark.parametrize("count", [3, 30, 41, 150])
    def test_the_names_of_rows_never_overlap(self, count: int) -> None:
        names = rows(count)
        figure = draw([Bars("", "ms", names, [1.0] * count, marks={names[-1]: "slow", names[count // 2]: "slow"})])
        png(figure)
        shown = figure.axes[0].get_yticklabels()
        boxes = sorted((text.get_window_extent().y0, text.get_window_extent().y1) for text in shown)
        assert all(below[1] <= above[0] + 0.5 for below, above in itertools.pairwise(boxes))
        assert {f"slow  {names[-1]}", f"slow  {names[count // 2]}"} <= {text.get_text() for text in shown}
        assert len(shown) == count if count <= 48 else 25 < len(shown) < 60

    def test_marked_rows_come_first_if_not_all_fit(self) -> None:
        assert rows_to_name(10, [5, 6], 4) == [0, 5, 9]
        assert rows_to_name(3, [], 1) == [0, 1, 2]


class TestHistogram:
    def test_labels_limits_and_legend(self) -> None:
        (axes,) = draw([COUNTS]).axes
        assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("losses", "value", "samples")
        assert labels(axes) == ["train", "valid"]
        assert axes.get_xlim() == (pytest.approx(-0.09), pytest.approx(3.09))
        assert axes.get_ylim() == (0.0, 5.25)

    def test_counts_are_drawn_over_their_intervals(self) -> None:
        (axes,) = draw([COUNTS]).axes
        data = axes.patches[0].get_data()  # type: ignore[attr-defined]
        assert (data.values.tolist(), data.edges.tolist()) == ([1, 5, 2], [0, 1, 2, 3])


class TestEveryKind:
    @pytest.mark.parametrize("panel", [LOSS, NORMS, TIMES, COUNTS], ids=lambda panel: type(panel).__name__)
    def test_it_is_visible(self, panel: Panel) -> None:
        blank = pixels(Figure(figsize=draw([panel]).get_size_inches(), dpi=100))
        drawn = pixels(draw([panel]))
        assert drawn.shape == blank.shape
        assert ((drawn != blank).any(axis=-1)).mean() > 0.02
        assert (drawn.max(axis=-1) - drawn.min(axis=-1) > 0.2).mean() > 0.002  # some pixels are colored

    @pytest.mark.parametrize("panel", EMPTY, ids=lambda panel: f"{type(panel).__name__} {panel.title}")
    def test_an_empty_panel_says_that_it_has_no_values(self, panel: Panel) -> None:
        figure = draw([panel])
        png(figure)
        assert [text.get_text() for text in figure.axes[0].texts] == ["no values"]

    @pytest.mark.parametrize("panel", [LOSS, NORMS, TIMES, COUNTS], ids=lambda panel: type(panel).__name__)
    def test_no_text_is_cut_off_or_overlaps_another(self, panel: Panel) -> None:
        figure = draw([panel, panel, panel], "run ab12")
        png(figure)
        texts = [figure._suptitle, *(text for axes in figure.axes for text in drawn_texts(axes))]
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        assert len(boxes) > 12
        for number, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
            assert not any(_overlap(box, other) for other in boxes[:number])

    @pytest.mark.parametrize("name", ["a$b$c", "_{x}", "100%", "<b>&amp;", "\x1b[2J\n", "\ud800", r"\$", "層", "x" * 3000, r"$\frac{"])
    def test_any_name_can_be_drawn(self, name: str) -> None:
        line, other = Line(name, [0, 1], [1.0, 2.0]), Line("b", [0, 1], [1.0, 2.0])
        heat = HeatMap(name, name, name, [0], [name], np.ones((1, 1)), marks={name: name})
        bars = Bars(name, name, [name], [1.0], marks={name: name})
        figure = draw([Lines(name, name, name, [line, other]), heat, bars, Histogram(name, name, name, {name: [1]}, [0, 1])], name)
        png(figure)
        assert figure.get_figwidth() < 20

    def test_a_long_name_is_shortened_in_the_middle(self) -> None:
        name = "encoder." + "layers." * 30 + "weight"
        (axes,) = draw([Bars("", "", [name], [1.0])]).axes
        (label,) = axes.get_yticklabels()
        text = label.get_text()
        assert len(text) < 50
        assert text.startswith("encoder.layers.")
        assert text.endswith("layers.weight")

    @given(st.lists(st.tuples(st.floats(), st.floats()), max_size=4), st.booleans())
    @settings(max_examples=6, deadline=None)
    def test_any_numbers_can_be_drawn(self, pairs: list[tuple[float, float]], is_log: bool) -> None:
        xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
        names = [str(number) for number in range(len(pairs))]
        heat = HeatMap("", "", "", xs, ["a"], np.array([ys]), is_log)
        png(draw([Lines("", "", "", [Line("a", xs, ys, low=ys, high=xs)], is_log), heat, Bars("", "", names, ys, is_log)]))


class TestManyPanels:
    def test_one_panel_is_one_column_and_several_are_two(self) -> None:
        one, three = draw([LOSS]), draw([LOSS, LOSS, LOSS])
        assert three.get_figwidth() == pytest.approx(2 * one.get_figwidth(), rel=0.1)
        png(three)  # computes the layout
        places = [axes.get_position() for axes in three.axes]
        assert (places[0].x0, places[0].y0) == (pytest.approx(places[2].x0), pytest.approx(places[1].y0))
        assert places[0].x0 < places[1].x0
        assert places[0].y0 > places[2].y0

    def test_no_panels_are_an_empty_figure(self) -> None:
        assert draw([], "run").axes == []
        png(draw([]))


def drawn_texts(axes: Any) -> list[Text]:
    """Return the texts in axes, except for the labels of ticks outside the view."""
    legend = axes.get_legend()
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *([] if legend is None else legend.get_texts())]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        texts += [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
    return texts


def _overlap(one: Any, other: Any) -> bool:
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
