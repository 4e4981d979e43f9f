"""The command `trainmaster report`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainmaster.cli.console import print_line, report_progress
from trainmaster.cli.open_store import find_store, print_no_runs
from trainmaster.cli.options import StoreArgument, StoreOption, WhereOption
from trainmaster.errors import SettingError


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    where: WhereOption = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Rank by this metric (default: the one that the runs monitor).")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The question that the report answers.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = "report.html",
) -> None:
    """Summarize the runs of a store in one HTML file.

    The file is self-contained and loads nothing from the network, so you can mail it, print it, or open it offline. It contains the mean
    of each setting with its interval, curves, parameter importance, ablations, hypothesis tests, all runs, forecasts, failures, configs,
    code and environment.

    \b
    Examples:
      trainmaster report
      trainmaster report runs --where 'arch=ViT' --title 'Does GELU beat ReLU?' -o gelu.html
      trainmaster report --metric valid/loss
    """
    from rich.filesize import decimal

    from trainmaster.analysis.report import write_report

    _check_output(output)
    found = find_store(store, store_dir)
    if found is None or next(iter(found.configs), None) is None:
        print_no_runs(store, store_dir)
        return
    size = write_report(output, found, where=where, metric=metric, title=title, progress=report_progress)
    print_line(f"wrote {output}, {decimal(size)}")


def _check_output(path: str) -> None:
    """Raise an error if the report would replace a file that is not a report."""
    from trainmaster.analysis.report_page import GENERATOR

    if not path or "\0" in path or os.path.isdir(path):
        raise SettingError(f"-o {path!r:.80} is not the name of a file", hint="`-o report.html` is a file in this folder")
    try:
        with open(path, "rb") as file:
            is_report = GENERATOR.encode() in file.read(4096)
    except OSError:  # the file does not exist, or writing it will report the problem
        return
    if not is_report:
        raise SettingError(f"`{path}` exists and is not a report", hint="choose another name, or remove the file")
