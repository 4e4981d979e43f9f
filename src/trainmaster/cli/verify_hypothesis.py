"""The command `trainmaster verify-hypothesis`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.console import print_line
from trainmaster.cli.open_store import open_store
from trainmaster.cli.options import StoreOption
from trainmaster.cli.print_report import FigureFolder, Format, check_format, print_report


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a hypothesis.")],
    store: StoreOption = None,
    format: Format = "text",
    figure: FigureFolder = None,
) -> int:
    """Recompute the verdict of a hypothesis from the store.

    The critical values in the plan are checked, and so are the seed and the config of every run. Every recorded value is compared with
    the run's log, and the recorded verdict is compared with the recomputed verdict. The original training program is not needed. The exit
    code is 1 if something differs.

    \b
    Example:
      trainmaster verify-hypothesis hypothesis-3fa9c012
    """
    from trainmaster.analysis import verify_hypothesis

    check_format(format)
    found = verify_hypothesis(open_store(store), name)
    values = {**found.verdict.to_dict(), "problems": found.problems}
    print_report(found.verdict.table, values, found.verdict.panels(), format, figure, f"hypothesis_{name}")
    if format == "text":
        count = f"{len(found.verdict.pairs)} pairs were read from the logs of their runs"
        print_line(f"confirmed: {count}" if found.is_confirmed else "NOT CONFIRMED", "green" if found.is_confirmed else "red")
        for problem in found.problems:
            print_line(f"  {problem}")
    return 0 if found.is_confirmed else 1
