"""What a figure shows, as plain data: drawn as PNG by `png.py`, as a page to zoom and hover in by `html.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainmaster.errors import SettingError


@dataclass(frozen=True)
class Line:
    """A curve; with `low` and `high`, a band around it. What is not finite is a gap."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    is_faint: bool = False
    """Behind the others, and not in the legend: what a smoothed curve was made of."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise SettingError(f"the band of line {self.label!r} has one side only", hint="give `low` and `high`, or neither")
        for name, values in {"ys": self.ys, "low": self.low, "high": self.high}.items():
            if values is not None and len(values) != len(self.xs):
                raise SettingError(f"line {self.label!r} has {len(self.xs)} xs and {len(values)} {name}", hint="one for each x")


@dataclass(frozen=True)
class Lines:
    """Curves over one axis."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_log: bool | None = None
    """Whether values are on a logarithmic axis; None for where they span much, and all are above 0."""


@dataclass(frozen=True)
class HeatMap:
    """One row for each name, one column for each moment, a colour for each value."""

    title: str
    x_label: str
    value_label: str
    xs: Sequence[float]
    rows: Sequence[str]
    """The first is on top."""
    values: NDArray[np.float64]
    """Of shape (rows, xs). NaN is left blank."""
    is_log: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """A word beside the names of some rows."""

    def __post_init__(self) -> None:
        wanted = (len(self.rows), len(self.xs))
        found = np.shape(self.values)
        if found != wanted and (0 not in wanted or np.size(self.values)):
            raise SettingError(
                f"heat map {self.title!r} has values of shape {found}", hint=f"one row each name, one column each x: {wanted}"
            )


@dataclass(frozen=True)
class Bars:
    """One bar for each name, the first on top."""

    title: str
    x_label: str
    names: Sequence[str]
    values: Sequence[float]
    is_log: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """As of a heat map."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.values):
            raise SettingError(f"bars {self.title!r} have {len(self.names)} names and {len(self.values)} values", hint="one for each name")


@dataclass(frozen=True)
class Histogram:
    """How many values there are in each interval."""

    title: str
    x_label: str
    y_label: str
    counts: Mapping[str, Sequence[int]]
    """By label: one count for each interval; several labels are drawn over each other."""
    edges: Sequence[float]
    """One more than there are intervals."""

    def __post_init__(self) -> None:
        for label, counts in self.counts.items():
            if len(counts) != max(0, len(self.edges) - 1):
                raise SettingError(
                    f"histogram {self.title!r} has {len(self.edges)} edges and {len(counts)} counts for {label!r}",
                    hint="one edge more than there are counts",
                )


Panel = Lines | HeatMap | Bars | Histogram
