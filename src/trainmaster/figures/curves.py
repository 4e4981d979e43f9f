"""Draws the metrics of a run as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.figures.panels import Line, Lines
from trainmaster.figures.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
"""A sequence of `(x, value)` pairs, where `x` is a step or an epoch."""

_MAX_PANELS = 8
_MAX_LINES = 10
_SETS = ("train", "valid", "test")


def curves(series: Mapping[str, Points], over: Mapping[str, str] | None = None, sets: Sequence[str] = _SETS, title: str = "") -> Figure:
    """Draw all series. The series of one metric, such as `train/loss` and `valid/loss`, share a panel if they have the same x axis.

    `over` maps the name of a series to its x axis, for example "epoch". `sets` contains the names of data sets, which
    are the first parts of names such as `train/loss`.
    """
    found = grouped(series, over or {}, sets)
    return draw([_panel(name, axis, members) for (name, axis), members in list(found.items())[:_MAX_PANELS]], title)


def grouped(series: Mapping[str, Points], over: Mapping[str, str], sets: Sequence[str] = _SETS) -> dict[tuple[str, str], dict[str, Points]]:
    """Group series by metric and x axis. Within a group, the label of a series is the rest of its name, without the metric.

    >>> grouped({"train/loss": [(1, 2.0)], "valid/loss": [(1, 3.0)], "lr": []}, {"train/loss": "epoch", "valid/loss": "epoch"})
    {('loss', 'epoch'): {'train': [(1, 2.0)], 'valid': [(1, 3.0)]}, ('lr', 'step'): {'lr': []}}
    """
    found: dict[tuple[str, str], dict[str, Points]] = {}
    for name, points in series.items():
        metric, label = _parts(name, sets)
        found.setdefault((metric, over.get(name, "step")), {})[label] = points
    return found


def _parts(name: str, sets: Sequence[str]) -> tuple[str, str]:
    """Split the name of a series into the title of its panel and its label in that panel.

    >>> _parts("valid/sample_loss/max", _SETS), _parts("grad_norm/0.weight", _SETS), _parts("activations/0/std", _SETS)
    (('sample_loss/max', 'valid'), ('grad_norm', '0.weight'), ('activations/.../std', '0'))
    """
    own = [each for each in sets if name.startswith(f"{each}/")]
    if own:
        label = max(own, key=len)
        return name.removeprefix(f"{label}/"), label
    first, *rest = name.split("/")
    if len(rest) > 1:
        return f"{first}/.../{rest[-1]}", "/".join(rest[:-1])
    return first, rest[0] if rest else name


def _panel(name: str, axis: str, members: Mapping[str, Points]) -> Lines:
    lines = [Line(label, [x for x, _ in points], [y for _, y in points]) for label, points in list(members.items())[:_MAX_LINES]]
    return Lines(name, axis, "", lines)
