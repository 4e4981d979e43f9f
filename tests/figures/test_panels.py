"""Panels check the lengths of their parts when they are created."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Bars, HeatMap, Histogram, Line, Parallel, ParallelAxis, Scatter


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Line("train", [1, 2, 3], [1.0, 2.0]), "line 'train': 3 xs, 2 ys"),
        (lambda: Line("train", [1], [1.0], low=[0.5]), "line 'train' has only one side of a band"),
        (lambda: Line("train", [1], [1.0], low=[0.5], high=[1.0, 2.0]), "line 'train': 1 xs, 1 ys, 1 low, 2 high"),
        (lambda: HeatMap("norms", "step", "norm", [0, 1, 2], ["a", "b"], np.zeros((3, 2))), r"'norms' has values of shape \(3, 2\)"),
        (lambda: Bars("times", "ms", ["a", "b"], [1.0]), "bars 'times': 2 names, 1 values"),
        (lambda: Histogram("losses", "loss", "samples", {"train": [1, 2]}, [0.0, 1.0]), "'losses': 1 intervals, 2 counts of 'train'"),
        (lambda: Scatter("t", "x", "y", [1, 2], [1]), "scatter 't': 2 xs, 1 ys"),
        (lambda: Scatter("t", "x", "y", [1, 2], [1, 2], ["a"]), "2 ys, 1 names"),
        (lambda: Parallel("t", [ParallelAxis("a", [1], []), ParallelAxis("b", [1, 2], [])]), "1 positions of 'a', 2 positions of 'b'"),
    ],
)
def test_parts_of_different_lengths_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_an_empty_heat_map_is_allowed() -> None:
    HeatMap("norms", "step", "norm", [], [], np.zeros(0))
