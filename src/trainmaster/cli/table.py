"""The command `trainmaster table`."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from trainmaster.cli.console import Column, print_line, print_table
from trainmaster.cli.options import ByOption, Json, StoreArgument, StoreOption, WhereOption
from trainmaster.text import printable


class Format(enum.StrEnum):
    TEXT = "text"
    CSV = "csv"
    MARKDOWN = "markdown"
    LATEX = "latex"
    JSON = "json"


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    where: WhereOption = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; repeat it for more.")
    ] = None,
    is_grouped: Annotated[bool, typer.Option("--group", help="One row for all runs that differ only in their seed.")] = False,
    by: ByOption = None,
    sort: Annotated[str | None, typer.Option(metavar="NAME", help="Sort by a column; -NAME sorts in descending order.")] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Print at most N rows; 0 prints all.")] = 0,
    style: Annotated[Format, typer.Option("--format", "-f", help="How to print the table.")] = Format.TEXT,
    is_json: Json = False,
) -> None:
    """Print the results as text, CSV, LaTeX or JSON.

    Prints one row per finished run, with the config values that vary and the metrics. With --group or --by, prints one row per group, with
    mean ± standard deviation. Text, Markdown and LaTeX contain rounded values. CSV and JSON contain exact values and, for groups, the 95 %
    interval of each mean. To include runs that have not finished, use a --where filter with a condition on `state`.

    \b
    Examples:
      trainmaster table --where 'lr<0.01' --sort valid/loss
      trainmaster table --group -m accuracy --format latex
      trainmaster table --by model.arch --by optim.lr --format csv > results.csv
    """
    from trainmaster.analysis import table_text
    from trainmaster.analysis.groups import has_direction
    from trainmaster.analysis.result_table import group_table, metric_names, run_table, sorted_table
    from trainmaster.cli.open_results import open_results

    style = Format.JSON if is_json else style
    results = open_results(store, store_dir, where)
    if not results:
        if style is Format.JSON:
            print("[]")
        elif style is Format.TEXT and results is not None:
            print_line("no finished run matches")
        return
    table = group_table(results, metrics, by) if is_grouped or by else run_table(results, metrics)
    if sort is not None:
        table = sorted_table(table, sort.removeprefix("-"), sort.startswith("-"))
    elif (is_grouped or by) and not has_direction(results.table, name := metric_names(results, metrics)[0]):
        unknown = f"nothing says whether lower or higher {printable(name)} is better, so the lowest mean comes first"
        print(f"{unknown}: `--sort -NAME` puts the highest first", file=sys.stderr)
    num_rows = len(next(iter(table.values())))
    if limit:
        table = {name: column[:limit] for name, column in table.items()}
    if style is not Format.TEXT:
        writers = {
            Format.CSV: table_text.to_csv,
            Format.MARKDOWN: table_text.to_markdown,
            Format.LATEX: table_text.to_latex,
            Format.JSON: table_text.to_json,
        }
        print(writers[style](table), end="")
        return
    texts = table_text.texts_of(table)
    print_table([
        Column(name, texts[name], table_text.is_number_column(column), rank=number) for number, (name, column) in enumerate(table.items())
    ])  # fmt: skip
    if 0 < limit < num_rows:
        print_line(f"... and {num_rows - limit:,} more: --limit 0 prints all", "dim")
