"""The curves of one figure: a series for each label, and how they are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from trainmaster.errors import SettingError
from trainmaster.figures.panels import Line
from trainmaster.figures.series import Series, smoothed
from trainmaster.loop.train_test_loop import TrainTestLoop

SUFFIX = {"epochs": "", "batches": "_by_batch", "samples": "_by_sample"}
"""What is added to the names of figures and recorded numbers for what they are drawn over."""
X_LABEL = {"epochs": "epoch", "batches": "batch", "samples": "sample"}


class Curves:
    """Series by their labels, as one state: first those that were named at the start, then the others as they came."""

    def __init__(self, *labels: str) -> None:
        self._series = {label: Series() for label in labels}

    def __len__(self) -> int:
        """How many curves have a point."""
        return sum(len(series) > 0 for series in self._series.values())

    def add(self, label: str, x: float, value: float) -> None:
        self.extend(label, [(x, value)])

    def extend(self, label: str, pairs: Iterable[tuple[float, float]]) -> None:
        if label not in self._series:
            self._series[label] = Series()
        self._series[label].extend(pairs)

    def lines(self, smoothing: float = 0.0, is_smooth: Callable[[str], bool] = bool) -> list[Line]:
        """All curves that have a point; of those to smooth, the values themselves are faint behind their moving means."""
        found = []
        for label, series in self._series.items():
            points = series.points()
            if not points:
                continue
            xs, means = [point.x for point in points], [point.mean for point in points]
            # A point that stands for many values has a band from the least of them to the greatest.
            has_band = any(point.count > 1 for point in points)
            low = [point.low for point in points] if has_band else None
            high = [point.high for point in points] if has_band else None
            is_faint = smoothing > 0 and is_smooth(label)
            found.append(Line(label, xs, means, low, high, is_faint))
            if is_faint:
                # By the value, not by the point, so that a curve is as smooth after its points were merged as before.
                found.append(Line(label, xs, smoothed(means, smoothing ** points[0].count)))
        return found

    def state_dict(self) -> dict[str, Any]:
        return {label: series.state_dict() for label, series in self._series.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._series = {label: Series() for label in state}
        for label, series in self._series.items():
            series.load_state_dict(state[label])


def checked_over(over: str, known: tuple[str, ...], who: str) -> str:
    if not isinstance(over, str) or over not in known:
        wanted = " or ".join(f'"{each}"' for each in known)
        raise SettingError(f"{who}(over={over!r}): wanted {wanted}", hint=f'{who} is drawn over "{known[0]}" by default')
    return over


def checked_smoothing(smoothing: float, who: str) -> float:
    is_number = isinstance(smoothing, int | float) and not isinstance(smoothing, bool)
    if not is_number or not 0 <= smoothing < 1:
        raise SettingError(
            f"{who}(smoothing={smoothing!r}): wanted a number from 0 up to, but not including, 1",
            hint="0 draws the values as they are, 0.9 a mean over about the last 10",
        )
    return smoothing


def scalar(name: str, value: Any, who: str) -> Any:
    """A value that can wait to become a number; anything else is refused with its shape."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value.detach().clone()  # it may be a parameter, or a buffer, which changes while this waits
    elif isinstance(value, int | float):
        return value
    elif isinstance(value, np.generic | np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, torch.Tensor | np.ndarray):
        said = f"a {type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"
    else:
        said = "None" if value is None else f"a {type(value).__name__}"
    raise SettingError(
        f"{who} numbers, and the fixture `{name}` is {said}",
        hint="take one number of it: a lazy fixture can give its mean, for example",
    )


def epochs_done(loop: Any) -> int:
    """How many epochs are through, at the end of one or in the evaluation after it: a `TrainTestLoop` counts it only after that."""
    return int(loop.epoch_num) + (isinstance(loop, TrainTestLoop) and not loop.is_testing)


def is_epoch_complete(loop: Any) -> bool:
    """Whether the epoch that ends was not stopped half-way, asked in `post_train_step_epoch`."""
    moment = getattr(loop, "moment", None)  # a TrainTestLoop that is stopped never comes here
    return moment is None or not moment.batch


def file_name(text: str) -> str:
    """A text as part of a file's name: set and figure names are the user's own.

    >>> file_name("valid/hard cases")
    'valid_hard_cases'
    """
    return re.sub(r"[^\w.=-]+", "_", text).strip(".") or "_"
