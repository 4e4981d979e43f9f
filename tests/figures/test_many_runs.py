"""Panels for many runs (scatter plots, violins and parallel coordinates) accept values of any kind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trainmaster.figures.drawing import Drawing
from trainmaster.figures.html import plot
from trainmaster.figures.panels import Line, Panel, Parallel, ParallelAxis, Scatter, Violins
from trainmaster.figures.png import density, draw, png

FIT = Line("fit", [1, 2], [1, 2], [0, 1], [2, 3])
ODD = [1e300, -1e300, math.inf, math.nan, 0.0, -1.0, 1.0]
AXES = [ParallelAxis("$a<b", [0.0, math.nan, 1.0], [(0, "low"), (1, "$")]), ParallelAxis("loss", [0.0, 0.5, math.nan], [(0, "0")])]
PANELS: dict[str, Panel] = {
    "scatter": Scatter("t", "x", "y", [1, 2, 3], [1, 2, 3], ["a", "b", "c"], FIT),
    "log": Scatter("t", "x", "y", ODD, ODD, is_log_x=True, is_log_y=True, fit=FIT),
    "nothing": Scatter("t", "x", "y", [], []),
    "violins": Violins("t", "x", "y", {"few": [1, 2], "many": list(range(20)), "one": [3], "none": [], "same": [2] * 9, "odd": ODD}),
    "log violins": Violins("t", "x", "y", {"a <b>": [0.001, 0.1, 1, 10, 100, 1000], "b": [0, -1]}, is_log=True),
    "many names": Violins("t", "x", "y", {f"a long name of a category {number}": [1, 2] for number in range(12)}),
    "parallel": Parallel("t", AXES, is_reversed=True),
    "no lines": Parallel("t", []),
}


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_with_any_values_is_drawn_as_png_and_as_a_page(name: str) -> None:
    assert png(draw([PANELS[name]])).startswith(b"\x89PNG")
    json.dumps(plot(PANELS[name]), allow_nan=False)


def test_few_or_equal_values_have_no_density() -> None:
    (few, many) = plot(Violins("t", "x", "y", {"few": [1, 2, 3], "many": [1, 2, 3, 4, 9]}))["data"]
    assert few["line"]["width"] == 0
    assert many["line"]["width"] == 1
    figure = draw([Violins("t", "x", "y", {"few": [1, 2, 3], "same": [5] * 9})])
    assert len(figure.axes[0].collections) == 2  # only the points


def test_the_mode_of_a_density_is_where_most_values_are() -> None:
    values = np.concatenate([np.full(50, 1.0) + np.linspace(-0.1, 0.1, 50), np.linspace(0, 5, 10)])
    positions, heights = density(values)
    assert positions[heights.argmax()] == pytest.approx(1.0, abs=0.15)
    assert heights.max() == 1.0


def test_the_best_line_is_drawn_last() -> None:
    axes = [ParallelAxis("loss", [0.9, 0.1, 0.5], [])]
    assert Parallel("t", axes).order() == [1, 2, 0]
    assert Parallel("t", axes, is_reversed=True).order() == [0, 2, 1]


def test_a_drawing_is_saved_in_the_format_of_its_suffix_and_shown_in_a_notebook(tmp_path: Path) -> None:
    drawing = Drawing([PANELS["scatter"]], "title")
    drawing.save(tmp_path / "new" / "one.png")
    drawing.save(tmp_path / "two.html")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == ["new/one.png", "plotly.min.js", "two.html"]
    assert drawing._repr_png_().startswith(b"\x89PNG")
