"""Curves: how numbers went over a training."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
"""Step or epoch, and the value there."""

_MAX_AXES = 8
_MAX_LINES = 10
_LOG_FROM = 30.0
"""How many times the least value the greatest is where an axis becomes logarithmic."""


def curves(series: Mapping[str, Points], title: str = "") -> Figure:
    """A figure of all series: those whose names differ only in the middle, as `losses/train/loss` and `losses/valid/loss`, together."""
    from matplotlib.figure import Figure

    groups = list(grouped(series).items())[:_MAX_AXES]
    columns = 1 if len(groups) == 1 else 2
    rows = math.ceil(max(1, len(groups)) / columns)
    width, height = 5.2 * columns, 3.3 * rows + 0.3
    figure = Figure(figsize=(width, height), dpi=100)
    # By hand: to have the margins found costs more than all the drawing.
    figure.subplots_adjust(0.7 / width, 0.5 / height, 1 - 0.15 / width, 1 - 0.65 / height, wspace=0.2, hspace=0.4)
    if title:
        figure.suptitle(_text(title))
    for number, (name, members) in enumerate(groups, start=1):
        axes = figure.add_subplot(rows, columns, number)
        values = []
        for label, points in list(members.items())[:_MAX_LINES]:
            shown = [(at, value if math.isfinite(value) else math.nan) for at, value in points]  # what is not finite is a gap
            values += [value for _, value in shown if value == value]
            style = "o-" if len(shown) <= 30 else "-"
            axes.plot([at for at, _ in shown], [value for _, value in shown], style, markersize=3, linewidth=1.2, label=_text(label))
        if values and min(values) > 0 and max(values) >= _LOG_FROM * min(values):
            axes.set_yscale("log")
        axes.set_title(_text(name), fontsize="medium")
        axes.set_xlabel("epoch" if name.startswith("losses/") else "step")
        axes.grid(alpha=0.3)
        if len(members) > 1 or next(iter(members)) != name:
            axes.legend(fontsize="small")
    return figure


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


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def _text(name: str) -> str:
    """A name as it is: matplotlib takes what stands between dollars for a formula."""
    shown = "".join(each if each.isprintable() else "?" for each in name)
    return shown.replace("$", r"\$")
