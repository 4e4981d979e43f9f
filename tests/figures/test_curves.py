"""Curves of a run, as a figure and as a picture."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from trainmaster.figures.curves import curves
from trainmaster.figures.png import png

LOSSES = {"losses/train/loss": [(1, 2.0), (2, 1.0)], "losses/valid/loss": [(0, 3.0), (1, 2.5), (2, 1.5)]}


def test_series_that_differ_in_the_middle_share_axes_with_a_legend() -> None:
    (axes,) = curves(LOSSES, "run ab12cd34").axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["train", "valid"]
    assert axes.get_title() == "losses/.../loss"
    assert axes.get_xlabel() == "epoch"


def test_other_series_have_axes_of_their_own_without_a_legend() -> None:
    figure = curves({"lr": [(0, 0.1)], "accuracy": [(0, 0.5)]})
    assert [axes.get_title() for axes in figure.axes] == ["lr", "accuracy"]
    assert all(axes.get_legend() is None for axes in figure.axes)


@pytest.mark.parametrize(("values", "scale"), [([1.0, 100.0], "log"), ([1.0, 2.0], "linear"), ([-1.0, 100.0], "linear")])
def test_an_axis_is_logarithmic_where_values_are_positive_and_far_apart(values: list[float], scale: str) -> None:
    (axes,) = curves({"x": list(enumerate(values))}).axes
    assert axes.get_yscale() == scale


def test_what_is_not_finite_is_a_gap() -> None:
    (axes,) = curves({"x": [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]}).axes
    (line,) = axes.get_lines()
    assert np.isnan(np.asarray(line.get_ydata(), dtype=float)).tolist() == [False, True, True, False]


def test_a_picture_has_the_lines_in_it() -> None:
    picture = imread(io.BytesIO(png(curves(LOSSES, "run ab12cd34"))))
    assert (picture[..., 2] - picture[..., 0] > 0.3).sum() > 200  # the blue line
    assert (picture[..., 0] - picture[..., 2] > 0.3).sum() > 200  # the orange one


def test_names_are_shown_as_they_are() -> None:
    figure = curves({"cost in $ \x1b[2J and $": [(0, 1.0)]})
    assert figure.axes[0].get_title() == r"cost in \$ ?[2J and \$"
    png(figure)


def test_nothing_and_a_great_many_can_be_drawn() -> None:
    png(curves({}))
    assert len(curves({f"metric {number}": [(0, 1.0)] for number in range(100)}).axes) == 8


def test_axes_with_a_great_many_lines_show_ten() -> None:
    (axes,) = curves({f"losses/set {number}/loss": [(0, 1.0), (1, 2.0)] for number in range(12)}).axes
    assert len(axes.get_lines()) == 10


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("losses/train/loss", "epoch"),
        ("losses_by_batch/train/loss", "batch"),
        ("losses_by_sample/train/loss", "sample"),
        ("accuracy/valid/avg", "step"),
        ("losses", "step"),
    ],
)
def test_what_a_series_is_drawn_over_is_told_by_its_name(name: str, label: str) -> None:
    (axes,) = curves({name: [(0, 1.0)]}).axes
    assert axes.get_xlabel() == label


def test_libraries_for_drawing_are_imported_only_to_draw() -> None:
    text = "import sys, trainmaster.figures; assert not {'matplotlib', 'plotly', 'torch'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
