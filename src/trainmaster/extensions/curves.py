"""The curves of one figure, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from trainmaster.arguments import check_choice, check_number
from trainmaster.errors import SettingError
from trainmaster.figures.panels import Line
from trainmaster.figures.series import Series, smoothed

SUFFIX = {"epochs": "", "batches": "_by_batch", "samples": "_by_sample"}
"""The suffix of figure and metric names for each value of `over`."""
X_LABEL = {"epochs": "epoch", "batches": "batch", "samples": "sample"}


class Curves:
    """Stores one series of points per label. Labels passed to the constructor come first; others follow in the order they are added."""

    def __init__(self, *labels: str) -> None:
        self._series = {label: Series() for label in labels}

    def __bool__(self) -> bool:
        """Return whether there is at least one point."""
        return any(len(series) for series in self._series.values())

    def add(self, label: str, x: float, value: float) -> None:
        self.extend(label, [(x, value)])

    def extend(self, label: str, pairs: Iterable[tuple[float, float]]) -> None:
        if label not in self._series:
            self._series[label] = Series()
        self._series[label].extend(pairs)

    def lines(self, smoothing: float = 0.0, is_smoothed: Callable[[str], bool] = bool) -> list[Line]:
        """Return the curves that have at least one point. For a smoothed curve, a pale curve with the raw values comes first."""
        lines = []
        for label, series in self._series.items():
            points = series.points()
            if not points:
                continue
            xs, means = [point.x for point in points], [point.mean for point in points]
            # A point that represents several values has a band from their minimum to their maximum.
            has_band = any(point.count > 1 for point in points)
            low = [point.low for point in points] if has_band else None
            high = [point.high for point in points] if has_band else None
            is_faint = smoothing > 0 and is_smoothed(label)
            lines.append(Line(label, xs, means, low, high, is_faint))
            if is_faint:
                # The weight is per value, not per point, so that merging points does not make a curve smoother.
                lines.append(Line(label, xs, smoothed(means, smoothing ** points[0].count)))
        return lines

    def state_dict(self) -> dict[str, Any]:
        return {label: series.state_dict() for label, series in self._series.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._series = {label: Series() for label in state}
        for label, series in self._series.items():
            series.load_state_dict(state[label])


def check_curve_arguments(over: str, choices: tuple[str, ...], smoothing: float, extension: str) -> None:
    check_choice("over", over, choices, hint=f'{extension}(over="{choices[-1]}")')
    check_number("smoothing", smoothing, min=0, below=1, hint="0 draws the raw values, 0.9 a mean over about the last 10")


def scalar(name: str, value: Any, extension: str) -> Any:
    """Return `value` as a scalar. A tensor is copied and stays on its device. Raises an error if `value` is not a scalar."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value.detach().clone()  # copied, because a parameter or a buffer may change before the value is read
    elif isinstance(value, int | float):
        return value
    elif isinstance(value, np.generic | np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = f"a {type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"
    else:
        kind = "None" if value is None else f"a {type(value).__name__}"
    raise SettingError(
        f"{extension} needs a number, but the fixture `{name}` is {kind}", hint="reduce it to one number, for example in a lazy fixture"
    )


def file_name(text: str) -> str:
    """Replace characters that are not safe in a file name. Users choose the names of sets and figures, so any text can occur.

    >>> file_name("valid/hard cases")
    'valid_hard_cases'
    """
    return re.sub(r"[^\w.=-]+", "_", text).strip(".") or "_"
