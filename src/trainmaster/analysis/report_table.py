"""`Table`: a small table as text, Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster.text import printable

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{each: f"\\{each}" for each in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Column names and rows of text. All text is escaped when it is shown, because it may come from an untrusted run."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()
    """The columns that are aligned to the right."""
    title: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.to_lines())

    def to_lines(self, width: int | None = None) -> list[str]:
        """Return lines with aligned columns for a terminal."""
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        for index, name in enumerate(self.columns):
            table.add_column(Text(printable(name)), justify="right" if index in self.numbers else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console = Console(file=io.StringIO(), width=width or 10_000, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as captured:
            console.print(table)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        return [*([printable(self.title)] if self.title else []), *lines, *(f"note: {printable(note)}" for note in self.notes)]

    def to_markdown(self) -> str:
        rule = [("---:" if index in self.numbers else "---") for index in range(len(self.columns))]
        lines = [_markdown_row(self.columns), _markdown_row(rule, is_rule=True), *map(_markdown_row, self.rows)]
        notes = [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join([*([f"**{_markdown(self.title)}**\n"] if self.title else []), *lines, *notes]) + "\n"

    def to_latex(self) -> str:
        """Return a LaTeX `tabular` that needs the package booktabs."""
        aligned = "".join("r" if index in self.numbers else "l" for index in range(len(self.columns)))
        lines = [f"% {printable(text)}" for text in (self.title, *self.notes) if text]
        lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", _latex_row(self.columns), r"\midrule"]
        return "\n".join([*lines, *map(_latex_row, self.rows), r"\bottomrule", r"\end{tabular}"]) + "\n"

    def to_html(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            styles = ["right" if index in self.numbers else "left" for index in range(len(cells))]
            return (
                "<tr>" + "".join(f'<{tag} style="text-align: {s}">{_html(c)}</{tag}>' for c, s in zip(cells, styles, strict=True)) + "</tr>"
            )

        body = "".join(row(each, "td") for each in self.rows)
        notes = "".join(f"<p>{_html(note)}</p>" for note in self.notes)
        title = f"<p><b>{_html(self.title)}</b></p>" if self.title else ""
        return f"{title}<table><thead>{row(self.columns, 'th')}</thead><tbody>{body}</tbody></table>{notes}"


def as_number(value: float) -> str:
    """Format a number with four significant digits, and nan as `-`.

    >>> as_number(0.123456), as_number(float("nan"))
    ('0.1235', '-')
    """
    return "-" if math.isnan(value) else f"{value:.4g}"


def as_signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.4g}"


def _markdown_row(cells: Sequence[str], is_rule: bool = False) -> str:
    return "| " + " | ".join(cell if is_rule else _markdown(cell) for cell in cells) + " |"


def _markdown(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\")
    for char in "|*_`[]#":
        escaped = escaped.replace(char, f"\\{char}")
    return escaped.replace("<", "&lt;")


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(_LATEX.get(char, char) for char in printable(cell)) for cell in cells) + r" \\"


def _html(text: str) -> str:
    return html.escape(printable(text))
