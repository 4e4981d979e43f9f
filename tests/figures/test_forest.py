"""Forest plots can be drawn as PNG and HTML."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.colors import to_rgba

from trainmaster.figures.colors import COLORS
from trainmaster.figures.html import plot
from trainmaster.figures.panels import Forest, ForestRow
from trainmaster.figures.png import draw, png
from trainmaster.figures.save import save

ROWS = [
    ForestRow("dropout", 0.02, 0.01, 0.03, "good"),
    ForestRow("<b>warmup</b> $x$", -0.01, -0.02, -0.005, "bad"),
    ForestRow("no interval", 0.001),
    ForestRow("no value", math.nan),
    ForestRow("mean", 0.01, -0.001, 0.02, "unclear", is_summary=True),
]
FOREST = Forest("parts", "accuracy", ROWS, line=0.005)


def test_every_row_has_its_mean_and_interval_in_the_color_of_its_verdict() -> None:
    axes = draw([FOREST]).axes[0]
    spans = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
    assert [list(line.get_xdata()) for line in spans[:2]] == [[0.01, 0.03], [-0.02, -0.005]]
    assert [line.get_color() for line in spans[:2]] == [COLORS[2], COLORS[1]]
    assert to_rgba(spans[4].get_color()) == to_rgba(COLORS[6])
    assert next(label.get_text() for label in axes.get_yticklabels()) == "dropout"
    assert png(draw([FOREST])).startswith(b"\x89PNG")


def test_the_reference_line_is_drawn() -> None:
    axes = draw([FOREST]).axes[0]
    assert [0.005, 0.005] in [list(line.get_xdata()) for line in axes.lines]
    shape = plot(FOREST)["layout"]["shapes"][0]
    assert (shape["x0"], shape["x1"]) == (0.005, 0.005)


def test_a_page_has_asymmetric_intervals_and_escapes_hostile_names() -> None:
    data = plot(FOREST)["data"]
    assert data[0]["error_x"]["array"][0] == 0.03 - 0.02
    assert "error_x" not in data[2]
    assert data[3]["x"] == [None]
    assert data[1]["y"] == ["&lt;b&gt;warmup&lt;/b&gt; $x$"]


def test_rows_without_values_are_an_empty_panel(tmp_path: Path) -> None:
    save(tmp_path, "empty", [Forest("nothing", "x", [])])
    assert plot(Forest("nothing", "x", [ForestRow("a", math.nan)]))["data"] == []
