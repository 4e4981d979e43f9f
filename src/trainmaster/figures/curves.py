"""Curves: how numbers went over a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.figures.panels import Line, Lines
from trainmaster.figures.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
"""Step or epoch, and the value there."""

_MAX_AXES = 8
_MAX_LINES = 10
_X_LABELS = {"losses": "epoch", "losses_by_batch": "batch", "losses_by_sample": "sample"}
"""What losses are drawn over, by the first part of their names; all else is drawn over steps."""


def curves(series: Mapping[str, Points], title: str = "") -> Figure:
    """A figure of all series: those whose names differ only in the middle, as `losses/train/loss` and `losses/valid/loss`, together."""
    return draw([_panel(name, members) for name, members in list(grouped(series).items())[:_MAX_AXES]], title)


def grouped(series: Mapping[str, Points]) -> dict[str, dict[str, Points]]:
    """Series by what they have in common, and by what they have not.

    >>> grouped({"losses/train/loss": [(1, 2.0)], "losses/valid/loss": [(1, 3.0)], "lr": []})
    {'losses/.../loss': {'train': [(1, 2.0)], 'valid': [(1, 3.0)]}, 'lr': {'lr': []}}
    """
    found: dict[str, dict[str, Points]] = {}
    for name, points in series.items():
        parts = name.split("/")
        if len(parts) >= 3:
            found.setdefault(f"{parts[0]}/.../{parts[-1]}", {})["/".join(parts[1:-1])] = points
        else:
            found.setdefault(name, {})[name] = points
    return found


def _panel(name: str, members: Mapping[str, Points]) -> Lines:
    lines = [Line(label, [x for x, _ in points], [y for _, y in points]) for label, points in list(members.items())[:_MAX_LINES]]
    first, slash, _ = name.partition("/")
    return Lines(name, _X_LABELS.get(first, "step") if slash else "step", "", lines)
