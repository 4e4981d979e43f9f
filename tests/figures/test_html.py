"""Figures can be written as interactive HTML pages."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from trainmaster.figures.colors import COLORS, MARK_COLOR
from trainmaster.figures.html import page
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line, Lines

EVIL = "</script><script>alert(1)</script>"
LOSS = Lines("loss", "epoch", "loss", [Line("train", [1, 2, 3], [3.0, math.inf, 1.0]), Line("valid", [1, 2], [300.0, 2.5])])
NORMS = HeatMap("norms", "step", "norm", [0, 10], ["a", "b"], np.array([[1.0, math.nan], [100.0, 1000.0]]), True, {"b": "exploding"})
TIMES = Bars("times", "ms", ["a", "b"], [1.0, 3.0], marks={"b": "slow"})
COUNTS = Histogram("losses", "value", "samples", {"train": [1, 5], "valid": [0, 2]}, [0.0, 1.0, 3.0])


def plots(*panels: Any, title: str = "") -> Any:
    """Return the plots that a page contains."""
    return _plain(json.loads(re.search(r"const panels = (.*);", page(panels, title))[1]))  # type: ignore[index]


def shown(panel: Any) -> Any:
    (plot,) = plots(panel)
    return plot


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        return array.reshape([int(size) for size in value["shape"].split(",")]) if "shape" in value else array
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def test_lines_have_their_names_and_values_with_gaps() -> None:
    train, valid = shown(LOSS)["data"]
    assert (train["name"], valid["name"]) == ("train", "valid")
    np.testing.assert_equal([*train["y"]], [3.0, math.nan, 1.0])
    assert (train["line"]["color"], valid["line"]["color"]) == COLORS[:2]


def test_axes_are_named_and_logarithmic_if_values_span_a_wide_range() -> None:
    layout = shown(LOSS)["layout"]
    assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == ("epoch", "loss")
    assert ("type" in layout["xaxis"], layout["yaxis"]["type"]) == (False, "log")


def test_a_legend_entry_toggles_a_line_with_its_band_and_its_faint_line() -> None:
    faint = Line("a", [0, 1], [1.0, 2.0], is_faint=True)
    line = Line("a", [0, 1], [1.0, 2.0], low=[0.0, 1.0], high=[2.0, 3.0])
    traces = shown(Lines("", "", "", [faint, line, Line("b", [0], [1.0])]))["data"]
    assert len({trace["legendgroup"] for trace in traces[:3]}) == 1
    assert [trace["showlegend"] for trace in traces] == [False, False, True, True]


def test_a_single_line_whose_name_is_shown_elsewhere_has_no_legend() -> None:
    (trace,) = shown(Lines("lr", "step", "", [Line("lr", [0, 1], [1.0, 2.0])]))["data"]
    assert trace["showlegend"] is False


def test_a_band_has_a_gap_where_its_line_has_one() -> None:
    band, _ = shown(Lines("", "", "", [Line("a", [0, 1, 2], [1.0, 2.0, 3.0], [0.0, math.nan, 2.0], [2.0, 3.0, 4.0])]))["data"]
    np.testing.assert_equal([*band["y"]], [0.0, 2.0, math.nan, 2.0, 4.0, math.nan])


def test_a_point_between_gaps_of_a_long_line_has_a_dot() -> None:
    ys = [math.nan if number in (49, 51) else 1.0 for number in range(100)]
    (trace,) = shown(Lines("", "", "", [Line("a", list(range(100)), ys)]))["data"]
    assert np.flatnonzero(trace["marker"]["size"]).tolist() == [50]


def test_a_heat_map_shows_values_and_has_a_log_color_scale() -> None:
    (trace,) = shown(NORMS)["data"]
    np.testing.assert_equal(trace["customdata"], NORMS.values)
    np.testing.assert_allclose(trace["z"], [[0.0, math.nan], [2.0, 3.0]])
    assert trace["colorbar"]["ticktext"] == ["1", "5.62", "31.6", "178", "1e+03"]
    np.testing.assert_allclose(trace["colorbar"]["tickvals"], [0, 0.75, 1.5, 2.25, 3], atol=1e-12)


@pytest.mark.parametrize(("panel", "mark"), [(NORMS, "exploding"), (TIMES, "slow")])
def test_rows_are_named_from_top_to_bottom_with_marks(panel: Any, mark: str) -> None:
    figure = shown(panel)
    assert figure["data"][0]["y"] == ["a", f"<span style='color: {MARK_COLOR}'>{mark}</span> b"]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"


def test_rows_with_the_same_name_stay_separate() -> None:
    (trace,) = shown(Bars("", "", ["a", "a", "a (2)"], [1.0, 2.0, 3.0]))["data"]
    assert trace["y"] == ["a", "a (2)", "a (2) (2)"]


def test_bars_have_their_values_and_colors() -> None:
    (trace,) = shown(TIMES)["data"]
    assert ([*trace["x"]], trace["marker"]["color"]) == ([1.0, 3.0], [COLORS[0], MARK_COLOR])


def test_counts_are_drawn_over_their_intervals() -> None:
    figure = shown(COUNTS)
    train, valid = figure["data"]
    assert ([*train["x"]], [*train["width"]], train["offset"], [*train["y"]]) == ([0.0, 1.0], [1.0, 2.0], 0, [1.0, 5.0])
    assert (valid["name"], figure["layout"]["barmode"]) == ("valid", "overlay")


def test_each_panel_is_a_separate_plot_below_the_page_title() -> None:
    layouts = [plot["layout"] for plot in plots(LOSS, NORMS, TIMES, COUNTS, title="run ab12")]
    assert [layout["title"]["text"] for layout in layouts] == ["loss", "norms", "times", "losses"]
    assert ">run ab12</h3>" in page([LOSS], "run ab12")


def test_the_height_of_a_plot_grows_with_its_rows_up_to_a_limit() -> None:
    heights = [shown(Bars("", "", [str(row) for row in range(count)], [1.0] * count))["layout"]["height"] for count in (3, 30, 60, 500)]
    assert 200 < heights[0] < heights[1] < heights[2] == heights[3] < 1200


@pytest.mark.parametrize("panel", [Lines("", "", "", []), Bars("", "", [], []), HeatMap("", "", "", [], [], np.zeros((0, 0)))])
def test_an_empty_panel_says_that_it_has_no_values(panel: Any) -> None:
    assert "no values" in [note["text"] for note in shown(panel)["layout"]["annotations"]]


def test_no_panels_are_an_empty_page() -> None:
    assert plots() == []


def test_a_name_cannot_inject_a_script() -> None:
    heat = HeatMap(EVIL, EVIL, EVIL, [0], [EVIL], np.ones((1, 1)), marks={EVIL: EVIL})
    text = page([Lines(EVIL, EVIL, EVIL, [Line(EVIL, [0], [1.0]), Line("b", [0], [1.0])]), heat], EVIL)
    assert text.lower().count("<script") == text.lower().count("</script") == 2
    assert "&lt;/script&gt;" in text  # in the title of the page


def test_tags_in_a_name_are_not_formatting() -> None:
    (trace,) = shown(Lines("", "", "", [Line('<a href="javascript:x">', [0], [1.0])]))["data"]
    assert trace["name"] == '&lt;a href="javascript:x"&gt;'


def test_a_page_loads_one_script_from_its_folder_and_nothing_else() -> None:
    text = page([LOSS, NORMS, TIMES, COUNTS], "run")
    assert re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", text) == ["plotly.min.js"]
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text


def test_a_short_line_has_markers_and_a_long_one_has_none() -> None:
    traces = shown(Lines("", "x", "y", [Line("long", range(200), [1.0] * 200), Line("short", range(3), [1.0, 2.0, 3.0])]))["data"]
    assert [trace["mode"] for trace in traces] == ["lines", "lines+markers"]
