"""Panels check their arguments when they are created."""

from __future__ import annotations

import numpy as np
import pytest

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line


def test_a_line_with_too_few_values_is_refused() -> None:
    with pytest.raises(SettingError, match="line 'train' has 3 xs and 2 ys"):
        Line("train", [1, 2, 3], [1.0, 2.0])


def test_a_band_with_one_side_is_refused() -> None:
    with pytest.raises(SettingError, match="line 'train' has only one side of a band"):
        Line("train", [1], [1.0], low=[0.5])


def test_a_band_with_a_different_length_is_refused() -> None:
    with pytest.raises(SettingError, match="line 'train' has 1 xs and 2 high"):
        Line("train", [1], [1.0], low=[0.5], high=[1.0, 2.0])


def test_a_transposed_heat_map_is_refused() -> None:
    with pytest.raises(SettingError, match=r"heat map 'norms' has values of shape \(3, 2\)") as caught:
        HeatMap("norms", "step", "norm", [0, 1, 2], ["a", "b"], np.zeros((3, 2)))
    assert "pass one row for each name and one column for each x: (2, 3)" in str(caught.value)


def test_an_empty_heat_map_is_allowed() -> None:
    HeatMap("norms", "step", "norm", [], [], np.zeros(0))


def test_bars_without_values_are_refused() -> None:
    with pytest.raises(SettingError, match="bars 'times' have 2 names and 1 values"):
        Bars("times", "ms", ["a", "b"], [1.0])


def test_a_histogram_with_as_many_edges_as_counts_is_refused() -> None:
    with pytest.raises(SettingError, match="histogram 'losses' has 2 edges and 2 counts for 'train'") as caught:
        Histogram("losses", "loss", "samples", {"train": [1, 2]}, [0.0, 1.0])
    assert "one edge more" in str(caught.value)
