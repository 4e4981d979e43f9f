"""Figures as pages to zoom and hover in."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import sys
from typing import Any

import numpy as np
import pytest

from trainmaster.errors import MissingExtraError
from trainmaster.figures.colours import COLOURS, MARKED
from trainmaster.figures.html import interactive, page
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line, Lines

EVIL = "</script><script>alert(1)</script>"
LOSS = Lines("loss", "epoch", "loss", [Line("train", [1, 2, 3], [3.0, math.inf, 1.0]), Line("valid", [1, 2], [300.0, 2.5])])
NORMS = HeatMap("norms", "step", "norm", [0, 10], ["a", "b"], np.array([[1.0, math.nan], [100.0, 1000.0]]), True, {"b": "exploding"})
TIMES = Bars("times", "ms", ["a", "b"], [1.0, 3.0], marks={"b": "slow"})
COUNTS = Histogram("losses", "value", "samples", {"train": [1, 5], "valid": [0, 2]}, [0.0, 1.0, 3.0])


def shown(*panels: Any, title: str = "") -> Any:
    """The figure as its page holds it."""
    text = page(interactive(panels, title), title)
    return _plain(json.loads(re.search(r"Object\.assign\((.*), \{config", text)[1]))  # type: ignore[index]


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
    assert (train["line"]["color"], valid["line"]["color"]) == COLOURS[:2]


def test_axes_are_named_and_logarithmic_where_values_span_much() -> None:
    layout = shown(LOSS)["layout"]
    assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == ("epoch", "loss")
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("linear", "log")


def test_a_line_is_switched_off_in_the_legend_with_its_band_and_its_faint_one() -> None:
    faint = Line("a", [0, 1], [1.0, 2.0], is_faint=True)
    line = Line("a", [0, 1], [1.0, 2.0], low=[0.0, 1.0], high=[2.0, 3.0])
    traces = shown(Lines("", "", "", [faint, line, Line("b", [0], [1.0])]))["data"]
    assert len({trace["legendgroup"] for trace in traces[:3]}) == 1
    assert [trace["showlegend"] for trace in traces] == [False, False, True, True]


def test_one_line_whose_name_is_said_has_no_legend() -> None:
    (trace,) = shown(Lines("lr", "step", "", [Line("lr", [0, 1], [1.0, 2.0])]))["data"]
    assert trace["showlegend"] is False


def test_a_band_has_a_gap_where_its_line_has_one() -> None:
    band, _ = shown(Lines("", "", "", [Line("a", [0, 1, 2], [1.0, 2.0, 3.0], [0.0, math.nan, 2.0], [2.0, 3.0, 4.0])]))["data"]
    np.testing.assert_equal([*band["y"]], [0.0, 2.0, math.nan, 2.0, 4.0])


def test_a_point_between_gaps_of_a_long_line_has_a_dot() -> None:
    ys = [math.nan if number in (49, 51) else 1.0 for number in range(100)]
    (trace,) = shown(Lines("", "", "", [Line("a", list(range(100)), ys)]))["data"]
    assert np.flatnonzero(trace["marker"]["size"]).tolist() == [50]


def test_a_heat_map_shows_values_and_is_coloured_by_powers() -> None:
    (trace,) = shown(NORMS)["data"]
    np.testing.assert_equal(trace["customdata"], NORMS.values)
    np.testing.assert_allclose(trace["z"], [[0.0, math.nan], [2.0, 3.0]])
    assert trace["colorbar"]["ticktext"] == ["1", "10", "100", "1000"]
    np.testing.assert_allclose(trace["colorbar"]["tickvals"], [0, 1, 2, 3], atol=1e-12)


@pytest.mark.parametrize(("panel", "mark"), [(NORMS, "exploding"), (TIMES, "slow")])
def test_rows_are_named_from_top_to_bottom_with_marks(panel: Any, mark: str) -> None:
    figure = shown(panel)
    assert figure["data"][0]["y"] == ["a", f"<span style='color: {MARKED}'>{mark}</span> b"]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"


def test_rows_of_one_name_stay_apart() -> None:
    (trace,) = shown(Bars("", "", ["a", "a", "a (2)"], [1.0, 2.0, 3.0]))["data"]
    assert trace["y"] == ["a", "a (2)", "a (2) (2)"]


def test_bars_have_their_values_and_colours() -> None:
    (trace,) = shown(TIMES)["data"]
    assert ([*trace["x"]], trace["marker"]["color"]) == ([1.0, 3.0], [COLOURS[0], MARKED])


def test_counts_are_drawn_over_their_intervals() -> None:
    figure = shown(COUNTS)
    train, valid = figure["data"]
    assert ([*train["x"]], [*train["width"]], train["offset"], [*train["y"]]) == ([0.0, 1.0], [1.0, 2.0], 0, [1.0, 5.0])
    assert (valid["name"], figure["layout"]["barmode"]) == ("valid", "overlay")


def test_panels_lie_below_each_other_without_touching() -> None:
    layout = shown(LOSS, NORMS, TIMES, COUNTS, title="run ab12")["layout"]
    domains = [layout[f"yaxis{number}"]["domain"] for number in ("", 2, 3, 4)]
    assert domains[0][1] == 1.0
    assert domains[3][0] == pytest.approx(0.0)
    assert all(above[0] > below[1] for above, below in itertools.pairwise(domains))
    assert [note["text"] for note in layout["annotations"]] == ["loss", "norms", "times", "losses"]
    assert layout["title"]["text"] == "run ab12"


@pytest.mark.parametrize("panel", [Lines("", "", "", []), Bars("", "", [], []), HeatMap("", "", "", [], [], np.zeros((0, 0)))])
def test_nothing_is_said_to_be_nothing(panel: Any) -> None:
    assert "no values" in [note["text"] for note in shown(panel)["layout"]["annotations"]]


def test_no_panels_are_an_empty_page() -> None:
    assert shown()["data"] == []


def test_a_name_cannot_become_a_script() -> None:
    heat = HeatMap(EVIL, EVIL, EVIL, [0], [EVIL], np.ones((1, 1)), marks={EVIL: EVIL})
    text = page(interactive([Lines(EVIL, EVIL, EVIL, [Line(EVIL, [0], [1.0]), Line("b", [0], [1.0])]), heat], EVIL), EVIL)
    assert text.lower().count("<script") == text.lower().count("</script") == 2
    assert "&lt;/script&gt;" in text  # the title of the page


def test_a_page_does_not_rely_on_the_library_for_that() -> None:
    class Raw:
        def to_json(self, engine: str) -> str:
            return json.dumps({"data": [], "layout": {"title": {"text": EVIL}}})

    assert page(Raw(), "").lower().count("<script") == 2


def test_a_name_is_no_formatting_either() -> None:
    (trace,) = shown(Lines("", "", "", [Line('<a href="javascript:x">', [0], [1.0])]))["data"]
    assert trace["name"] == '&lt;a href="javascript:x"&gt;'


def test_a_page_asks_for_one_script_beside_it_and_for_nothing_else() -> None:
    text = page(interactive([LOSS, NORMS, TIMES, COUNTS], "run"), "run")
    assert re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", text) == ["plotly.min.js"]
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text


def test_what_to_install_is_said_where_plotly_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(MissingExtraError) as caught:
        interactive([LOSS])
    assert str(caught.value) == "interactive figures need: pip install 'trainmaster[analysis]'"
    assert isinstance(caught.value, ImportError)


def test_a_long_line_has_no_dots_and_a_short_one_has() -> None:
    traces = interactive([Lines("", "x", "y", [Line("long", range(200), [1.0] * 200), Line("short", range(3), [1.0, 2.0, 3.0])])]).data
    assert [trace["mode"] for trace in traces] == ["lines", "lines+markers"]
