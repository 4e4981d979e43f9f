"""The command `trainmaster curves`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.completion import complete_key
from trainmaster.cli.open_store import open_store, resolve_key
from trainmaster.cli.options import ByOption, FigureFile, StoreOption, WhereOption
from trainmaster.errors import SettingError


def command(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]", help="Draw these runs; without keys, groups are drawn.", autocompletion=complete_key),
    ] = None,
    store: StoreOption = None,
    where: WhereOption = None,
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="The metric to draw (default: the monitored one).")
    ] = None,
    by: ByOption = None,
    output: FigureFile = None,
) -> None:
    """Draw the curves of a metric.

    If you pass keys, each of these runs is drawn as one line, whatever its state. Otherwise, finished runs are grouped; by default, runs
    that differ only in their seed form a group. The figure then shows the mean and its 95 % interval for the best six groups.

    \b
    Examples:
      trainmaster curves 3fa9 81c0 -m valid/loss
      trainmaster curves --by model.arch --where 'lr=0.01' -o curves.html
    """
    from trainmaster.analysis.plot_analysis import file_name
    from trainmaster.cli.open_results import open_results, save_figure

    if keys and (by or where is not None):
        raise SettingError("`--where` and `--by` cannot be combined with keys", hint="leave out the keys, or --where and --by")
    if keys:
        found = open_store(store)
        where = f"key in ({', '.join(resolve_key(found, key) for key in keys)}) and state!=damaged"
    results = open_results(store, None, where)
    if results is None:
        return
    drawing = results.curves(metric, "key" if keys else by)
    save_figure(drawing, output or f"{file_name(results.ranked_by(metric).metric)}-curves.png")
