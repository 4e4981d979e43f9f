"""`curves` draws the metrics of a run."""

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

LOSSES = {"train/loss": [(1, 2.0), (2, 1.0)], "valid/loss": [(0, 3.0), (1, 2.5), (2, 1.5)]}


def test_series_of_one_metric_share_axes_with_a_legend() -> None:
    (axes,) = curves(LOSSES, dict.fromkeys(LOSSES, "epoch"), title="run ab12cd34").axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["train", "valid"]
    assert axes.get_title() == "loss"
    assert axes.get_xlabel() == "epoch"


def test_other_series_have_separate_axes_without_a_legend() -> None:
    figure = curves({"lr": [(0, 0.1)], "accuracy": [(0, 0.5)]})
    assert [axes.get_title() for axes in figure.axes] == ["lr", "accuracy"]
    assert all(axes.get_legend() is None for axes in figure.axes)


@pytest.mark.parametrize(("values", "scale"), [([1.0, 100.0], "log"), ([1.0, 2.0], "linear"), ([-1.0, 100.0], "linear")])
def test_an_axis_is_logarithmic_if_values_are_positive_and_span_a_wide_range(values: list[float], scale: str) -> None:
    (axes,) = curves({"x": list(enumerate(values))}).axes
    assert axes.get_yscale() == scale


def test_values_that_are_not_finite_leave_a_gap() -> None:
    (axes,) = curves({"x": [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]}).axes
    (line,) = axes.get_lines()
    assert np.isnan(np.asarray(line.get_ydata(), dtype=float)).tolist() == [False, True, True, False]


def test_the_image_shows_the_lines() -> None:
    picture = imread(io.BytesIO(png(curves(LOSSES, dict.fromkeys(LOSSES, "epoch"), title="run ab12cd34"))))
    assert (picture[..., 2] - picture[..., 0] > 0.3).sum() > 200  # the blue line
    assert (picture[..., 0] - picture[..., 2] > 0.3).sum() > 200  # the orange line


def test_names_are_shown_unchanged() -> None:
    figure = curves({"cost in $ \x1b[2J and $": [(0, 1.0)]})
    assert figure.axes[0].get_title() == r"cost in \$ \x1b[2J and \$"
    png(figure)


def test_zero_series_and_very_many_series_can_be_drawn() -> None:
    png(curves({}))
    assert len(curves({f"metric {number}": [(0, 1.0)] for number in range(100)}).axes) == 8


def test_axes_show_at_most_ten_lines() -> None:
    sets = [f"set {number}" for number in range(12)]
    (axes,) = curves({f"{name}/loss": [(0, 1.0), (1, 2.0)] for name in sets}, sets=sets).axes
    assert len(axes.get_lines()) == 10


def test_the_x_axis_has_the_recorded_name() -> None:
    """Epochs are not drawn as steps, and metrics with different x axes are never in one plot."""
    names = ("train/loss", "valid/loss", "grad_norm/0.weight", "grad_norm/0.bias", "lr", "own/mine")
    over = {"train/loss": "batch", "valid/loss": "epoch", "grad_norm/0.weight": "epoch", "grad_norm/0.bias": "epoch", "lr": "update"}
    figure = curves({name: [(0, 1.0), (1, 2.0)] for name in names}, over)
    found = [(axes.get_title(), axes.get_xlabel(), len(axes.get_lines())) for axes in figure.axes]
    assert found == [("loss", "batch", 1), ("loss", "epoch", 1), ("grad_norm", "epoch", 2), ("lr", "update", 1), ("own", "step", 1)]


def test_matplotlib_is_imported_only_when_something_is_drawn() -> None:
    text = "import sys, trainmaster.figures; assert not {'matplotlib', 'plotly', 'torch'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
