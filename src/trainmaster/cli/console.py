"""Prints lines, tables and JSON to stdout, and the progress of slow commands to stderr.

Lines and tables are escaped first, because text from a store may contain control characters. A terminal gets colors and
tables that fit its width. A pipe gets plain lines of any length.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_GAP = 2
_PADDING = (0, _GAP, 0, 0)
_MAX_CELL_WIDTH = 40
_MAX_CELL_WIDTH_IN_PIPE = 200
_PIPE_WIDTH = 100_000
_FIRST_MESSAGE = 1.5
_NEXT_MESSAGE = 15.0


class Column(NamedTuple):
    title: str
    cells: Sequence[str]
    is_number: bool = False
    rank: int = 0
    """If the terminal is too narrow, the columns with the highest rank are dropped first. Rank 0 is never dropped."""
    style: str | Sequence[str] = ""
    """A rich style, such as `red` or `dim`, for the whole column, or one style for each cell."""


def make_console() -> Console:
    from rich.console import Console

    return Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        force_jupyter=False,
    )


def is_terminal() -> bool:
    return make_console().is_terminal


def can_draw_blocks() -> bool:
    """Return whether sparklines can use block characters. If stdout is not a terminal, they use ASCII."""
    console = make_console()
    return console.is_terminal and not console.options.ascii_only


def print_line(text: object, style: str = "") -> None:
    from rich.text import Text

    make_console().print(Text(printable(text), style), soft_wrap=True)


def print_table(columns: Sequence[Column], indent: str = "") -> None:
    """Print aligned columns. Columns that do not fit on the terminal are dropped, and their titles are listed."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    texts = [[_shorten(each, console) for each in (column.title, *column.cells)] for column in columns]
    widths = [max(map(cell_len, each)) for each in texts]
    shown = [*range(len(columns))]
    while len(indent) + sum(widths[at] + _GAP for at in shown) - _GAP > console.width:
        last = max(shown, key=lambda at: (columns[at].rank, at))
        if columns[last].rank == 0:
            break
        shown.remove(last)
    table = Table.grid(padding=_PADDING)
    table.show_header = True
    for at in shown:
        overflow: Any = "crop" if console.options.ascii_only else "ellipsis"
        table.add_column(Text(texts[at][0]), justify="right" if columns[at].is_number else "left", no_wrap=True, overflow=overflow)
    styles = [[each.style] * len(each.cells) if isinstance(each.style, str) else each.style for each in columns]
    for row in range(len(columns[0].cells)):
        table.add_row(*(Text(texts[at][row + 1], styles[at][row]) for at in shown))
    _print_stripped(console, table, indent)
    if len(shown) < len(columns):
        print_line(f"{indent}too narrow for: {', '.join(texts[at][0] for at in range(len(columns)) if at not in shown)}", "dim")


def print_json(value: Any) -> None:
    """Print strict ASCII JSON for other programs. JSON has no NaN and no infinities, so they become "nan", "inf" and "-inf"."""
    print(json.dumps(to_json(value), indent=1, allow_nan=False))


def to_json(value: Any) -> Any:
    """Convert a value to types that JSON supports.

    >>> to_json({"loss": float("nan"), "sizes": (1, 2)})
    {'loss': 'nan', 'sizes': [1, 2]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each) for each in value]
    return str(value)


def print_pairs(rows: Iterable[tuple[str, object]], indent: str = "  ") -> None:
    """Print names and values in two columns. On a terminal, a long value continues on the next line of its column."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=_PADDING)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(printable(name), "dim"), Text(printable(value)))
    _print_stripped(make_console(), table, indent)


def report_progress(keys: list[str]) -> Iterator[str]:
    """Yield the keys, and print the progress to stderr if reading the runs takes a long time."""
    due = time.monotonic() + _FIRST_MESSAGE
    for number, key in enumerate(keys):
        if number % 50 == 0 and time.monotonic() > due:
            print(f"reading {len(keys):,} runs: {100 * number // len(keys)} %", file=sys.stderr)
            due = time.monotonic() + _NEXT_MESSAGE
        yield key


def _print_stripped(console: Console, table: Table, indent: str) -> None:
    """Print a table without the spaces that rich puts at the end of each line."""
    with console.capture() as captured:
        console.print(table, crop=False, width=console.width - len(indent))
    for line in captured.get().splitlines():
        print(f"{indent}{line}".rstrip())


def _shorten(text: str, console: Console) -> str:
    from rich.cells import cell_len, set_cell_size

    max_width = _MAX_CELL_WIDTH if console.is_terminal else _MAX_CELL_WIDTH_IN_PIPE
    shown = printable(text[: max_width + 1])
    return shown if cell_len(shown) <= max_width else f"{set_cell_size(shown, max_width - 2)}.."
