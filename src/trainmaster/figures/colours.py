"""Colours that can be told apart without seeing red or green: those of Okabe and Ito for lines, viridis for values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster.figures.panels import Line

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MARKED = "#D55E00"
"""Of what has a mark, and of the mark."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""After the last colour the first comes again, with other dashes."""
NUM_SHADES = 256


@dataclass(frozen=True)
class Look:
    colour: str
    dash: str


def look(number: int) -> Look:
    """How the line of a number looks; after 28 they repeat."""
    return Look(COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)])


def looks(lines: Sequence[Line]) -> list[Look]:
    """How lines look: each other than the rest, but a faint one as the next of its label that is not."""
    found: list[Look | None] = [None] * len(lines)
    number = 0
    for index, line in enumerate(lines):
        owner = next((other for other in range(index, len(lines)) if _owns(lines[other], line)), index)
        if found[owner] is None:
            found[owner] = look(number)
            number += 1
        found[index] = found[owner]
    return [each for each in found if each is not None]


def _owns(other: Line, line: Line) -> bool:
    return other is line if not line.is_faint else not other.is_faint and other.label == line.label
