"""Tables: aligned columns, escaped, without lines around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainmaster.cli.terminal import Terminal
from trainmaster.store.printable import printable, width

_GAP = "  "
_MAX_CELL = 40
"""How wide a cell may be on a terminal."""


class Cell(NamedTuple):
    text: str
    style: str = ""


class Column(NamedTuple):
    title: str
    cells: Sequence[Cell]
    is_number: bool = False


def table(columns: Sequence[Column], terminal: Terminal, num_fixed: int = 1) -> tuple[list[str], list[str]]:
    """The lines of a table, and the titles of the columns that a terminal is too narrow for; the first `num_fixed` are always there."""
    texts = [[_cut(each, terminal) for each in (column.title, *(cell.text for cell in column.cells))] for column in columns]
    widths = [max(map(width, each)) for each in texts]
    styles = [["bold", *(cell.style for cell in column.cells)] for column in columns]
    kept: list[int] = []
    for at in range(len(columns)):
        needed = sum(widths[each] + len(_GAP) for each in kept) + widths[at]
        if terminal.width is None or at < num_fixed or needed <= terminal.width:
            kept.append(at)
    lines = []
    for row in range(len(texts[0]) if columns else 0):
        shown = [_padded(texts[at][row], widths[at], columns[at].is_number, styles[at][row], terminal) for at in kept]
        lines.append(_GAP.join(shown).rstrip())
    return lines, [column.title for at, column in enumerate(columns) if at not in kept]


def pairs(rows: Iterable[tuple[str, object]], terminal: Terminal, indent: str = "  ") -> Iterator[str]:
    """Names with their values, as two columns."""
    shown = [(printable(name), printable(value)) for name, value in rows]
    most = max((width(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield f"{indent}{terminal.paint(name, 'dim')}{' ' * (most - width(name))}{_GAP}{value}".rstrip()


def _cut(text: str, terminal: Terminal) -> str:
    shown = printable(text)
    if not terminal.is_one or width(shown) <= _MAX_CELL:
        return shown
    while width(shown) > _MAX_CELL - 2:
        shown = shown[:-1]
    return f"{shown}.."


def _padded(text: str, columns: int, is_number: bool, style: str, terminal: Terminal) -> str:
    space = " " * (columns - width(text))
    painted = terminal.paint(text, style)
    return space + painted if is_number else painted + space
