"""Formats a table as plain text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], num_left: int) -> list[str]:
    """Return the lines of a table. The first `num_left` columns are left-aligned, and the others are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index < num_left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=1000, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
