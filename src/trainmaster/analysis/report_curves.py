"""Draws the curves of a report: the mean of each setting over its seeds, with the interval of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.analysis.forecast import Forecast
from trainmaster.analysis.groups import Group
from trainmaster.analysis.report_page import Html, element, join
from trainmaster.analysis.results import Results
from trainmaster.analysis.statistics import mean_and_sd, smallest_significant
from trainmaster.analysis.unfinished_runs import UnfinishedRun
from trainmaster.figures.curves import grouped
from trainmaster.figures.svg import NUM_COLORS, Curve, Whisker, color_class, draw_curves
from trainmaster.store.steps import Steps
from trainmaster.text import counted

MAX_FIGURES = 6
_MAX_SETS = 3
"""A metric with more series than this gets no figure, for example a norm that is logged for each layer."""
_MAX_SEEDS = 20


def legend(labels: Sequence[object]) -> Html:
    return element("ul", *(element("li", swatch(number), label) for number, label in enumerate(labels)), class_="legend")


def swatch(number: int) -> Html:
    return Html(f'<svg class="swatch" viewBox="0 0 22 10" aria-hidden="true"><path class="line {color_class(number)}" d="M1 5H21"/></svg>')


def figure(title: str, note: str, drawing: str) -> Html:
    return element("figure", element("figcaption", element("span", title), element("small", note)), Html(drawing))


def make_figures(results: Results, groups: Sequence[Group], metric: str) -> list[Html]:
    """Return a figure for each metric, starting with the metric that ranks the runs.

    The curves of a metric on different data sets, such as `train/loss` and `valid/loss`, share a figure.
    """
    rows = [row for group in groups for row in group.rows[:_MAX_SEEDS]]
    steps = dict(results.read_steps(rows=rows))
    names = sorted({name for found in steps.values() for name in found}, key=lambda name: (name != metric, name.startswith("train"), name))
    axes = {name: found[name].over for name in names for found in steps.values() if name in found}
    panels = grouped({name: [(0.0, float(number))] for number, name in enumerate(names)}, axes, _sets(names))
    figures: list[Html] = []
    for (title, axis), members in panels.items():
        if len(members) <= _MAX_SETS and len(figures) < MAX_FIGURES:
            sets = [(label, names[int(points[0][1])]) for label, points in members.items()]
            curves = [curve for number, each in enumerate(sets) for curve in _curves(groups, steps, each, number)]
            if curves:
                dashes = zip(sets, ("solid", "dashed", "dotted"), strict=False)
                drawn = ", ".join(f"{label} {dash}" for (label, _), dash in dashes) if len(sets) > 1 else sets[0][1]
                figures.append(figure(title, drawn, draw_curves(curves, axis, f"{title} by {axis}")))
    return figures


def _sets(names: Sequence[str]) -> list[str]:
    """Return `train`, `valid`, `test`, and every other data set whose loss is among the metrics."""
    return [*{"train", "valid", "test", *(name.removesuffix("/loss") for name in names if name.endswith("/loss"))}]


def _curves(groups: Sequence[Group], steps: dict[int, dict[str, Steps]], member: tuple[str, str], number: int) -> list[Curve]:
    label, name = member
    found = []
    for color, group in enumerate(groups):
        seeds = [steps[row][name] for row in group.rows[:_MAX_SEEDS] if name in steps.get(row, {})]
        if seeds:
            found.append(_mean_curve(seeds, f"{group.label}: {label}, {counted(len(seeds), 'seed')}", color + number * NUM_COLORS))
    return found


def _mean_curve(seeds: Sequence[Steps], label: str, color: int) -> Curve:
    """Return the mean curve at the steps that all seeds have, with the interval of the mean if there are several seeds."""
    curves = [dict(zip(each.xs, each.ys, strict=True)) for each in seeds]
    xs = sorted(set.intersection(*({*curve} for curve in curves)))
    spread = smallest_significant(len(curves))
    means, lows, highs = [], [], []
    for x in xs:
        mean, sd = mean_and_sd([curve[x] for curve in curves])
        margin = spread * sd if len(curves) > 1 else math.nan
        means.append(mean)
        lows.append(mean - margin)
        highs.append(mean + margin)
    return Curve(label, xs, means, lows if len(curves) > 1 else (), highs if len(curves) > 1 else (), color)


def forecast_figure(runs: Sequence[UnfinishedRun], metric: str) -> Html:
    """Return a figure with the curves of unfinished runs and the forecast bands of their final values."""
    shown = [(run, run.forecast) for run in runs if isinstance(run.forecast, Forecast) and run.target is not None][:NUM_COLORS]
    curves = [Curve(run.key, sorted(run.curve), [run.curve[x] for x in sorted(run.curve)], color=at) for at, (run, _) in enumerate(shown)]
    whiskers = [Whisker(run.target or 0, each.value, each.low, each.high, f"{run.key}: {each}", at) for at, (run, each) in enumerate(shown)]
    drawing = draw_curves(curves, "epoch", f"Forecasts of {metric}", whiskers)
    drawn = figure(metric, "so far, and the bands of the final values", drawing)
    return join([legend([element("code", run.key) for run, _ in shown]), element("div", drawn, class_="figures")])
