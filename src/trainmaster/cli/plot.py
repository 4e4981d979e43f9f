"""The command `trainmaster plot`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.options import FigureFile, StoreOption, WhereOption
from trainmaster.errors import SettingError, did_you_mean

_AXES = ("x", "y")


def command(
    words: Annotated[list[str], typer.Argument(metavar="[STORE] x=KEY [y=METRIC]", help="The config key and the metric to draw.")],
    store: StoreOption = None,
    where: WhereOption = None,
    output: FigureFile = None,
) -> None:
    """Draw a metric against a config value.

    Only finished runs are drawn. If the values of the config key are numbers, the figure shows a regression line with its 95 % band. If
    they are categories, it shows violins. Numbers are also drawn as violins if there are at most ten different numbers and, on average, at
    least three runs for each of them. The default metric is the one that the runs monitor. Without --output, the file is named after the
    config key and the metric.

    \b
    Examples:
      trainmaster plot x=lr y=valid/loss
      trainmaster plot runs x=model.arch y=accuracy --where 'epochs=20' -o arch.html
    """
    from trainmaster.analysis.plot_analysis import file_name
    from trainmaster.cli.open_results import open_results, save_figure

    store_dir, x, y = _parse(words)
    results = open_results(store, store_dir, where)
    if results is None:
        return
    drawing = results.plot(x, y)
    metric = results.ranked_by(y).metric
    save_figure(drawing, output or f"{file_name(metric)}-by-{file_name(results.find(x).full)}.png")


def _parse(words: list[str]) -> tuple[str | None, str, str | None]:
    """Return the store, x and y from the arguments."""
    stores = [word for word in words if "=" not in word]
    axes = dict(word.split("=", 1) for word in words if "=" in word)
    example = "trainmaster plot x=lr y=valid/loss"
    if wrong := [name for name in axes if name not in _AXES]:
        raise SettingError(f"`{wrong[0]}={axes[wrong[0]]}`: a plot has x and y", hint=did_you_mean(wrong[0], _AXES) or example)
    if len(stores) > 1 or len(axes) + len(stores) < len(words):
        raise SettingError(f"expected one store, one x and one y, not `{' '.join(words)}`", hint=example)
    if not axes.get("x"):
        raise SettingError("the config key to draw is missing: x=KEY", hint=example)
    return (stores[0] if stores else None), axes["x"], axes.get("y") or None
