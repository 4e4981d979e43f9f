"""Prints the report of an ablation or a hypothesis in a chosen format, and writes its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainmaster.analysis.report_table import Table
    from trainmaster.figures.panels import Panel

FORMATS = ("text", "markdown", "latex", "json")
Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="Print only the report: text, markdown, latex or json.", show_default=False)
]
FigureFolder = Annotated[str | None, typer.Option(metavar="FOLDER", help="Write the figure as PNG and HTML into this folder.")]


def check_format(format: str | None) -> None:
    from trainmaster.arguments import check_choice

    if format is not None:
        check_choice("--format", format, FORMATS, hint="--format markdown")


def print_report(
    table: Table, values: Mapping[str, Any], panels: Sequence[Panel], format: str | None, folder: str | None, name: str
) -> None:
    """Print a report in a chosen format, and write its figure.

    If `format` is None, nothing is printed, because the manager has already printed the report. If `folder` is None, no
    figure is written.
    """
    from trainmaster.cli.console import print_json

    if folder is not None:
        from trainmaster.figures.save import save

        save(folder, name, panels)
    if format == "json":
        print_json(values)
    elif format == "markdown":
        print(table.to_markdown(), end="")
    elif format == "latex":
        print(table.to_latex(), end="")
    elif format == "text":
        print(table)
