"""Colors that color-blind people can tell apart: Okabe and Ito's palette for lines, viridis for heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster.figures.panels import Line

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MARK_COLOR = "#D55E00"
"""The color of marked rows and bars."""
DASHES = ("solid", "dash", "dot", "dashdot")


class LineStyle(NamedTuple):
    color: str
    dash: str


def line_styles(lines: Sequence[Line]) -> list[LineStyle]:
    """Return the style of each line. Lines with the same label, such as a smoothed curve and its faint raw values, have the same style.

    Styles repeat after 28 labels.
    """
    numbers: dict[str, int] = {}
    for line in lines:
        numbers.setdefault(line.label, len(numbers))
    return [LineStyle(COLORS[number % 7], DASHES[number // 7 % 4]) for number in (numbers[line.label] for line in lines)]
