"""Figures of results: a metric against a config key, curves over seeds, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.analysis.columns import Array, Floats, array_of, distinct, exact_text, floats_of, is_numeric
from trainmaster.analysis.groups import by_value, config_means, has_direction, rank_groups, rows_with, varies
from trainmaster.analysis.importance import MAX_CATEGORIES
from trainmaster.analysis.regression import LEVEL, fit_line
from trainmaster.analysis.statistics import t_quantile
from trainmaster.config.varying import short_names, short_values
from trainmaster.errors import SettingError
from trainmaster.figures.drawing import Drawing
from trainmaster.figures.panels import Line, Lines, Panel, Parallel, ParallelAxis, Scatter, Violins
from trainmaster.store.metric_names import listed, short_name
from trainmaster.store.run_table import MISSING, Column
from trainmaster.store.steps import Steps
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results

MAX_CURVES = 6
MAX_AXES = 8
_MIN_PER_VALUE = 3
"""Numbers are drawn as categories only if each value has this many runs on average, because a violin needs several runs."""
_LOG_RATIO_X, _LOG_RATIO_Y = 100.0, 30.0
"""An axis is logarithmic if all its values are positive and the largest is at least this many times the smallest."""


def plot(results: Results, x: str, y: str | None = None) -> Drawing:
    metric = results.ranked_by(y).metric
    found = results.find(x)
    return Drawing([attribute_panel(results, found.full, metric, is_metric=found.is_metric)])


def attribute_panel(results: Results, name: str, metric: str, labels: Mapping[str, str] | None = None, is_metric: bool = False) -> Panel:
    """Return a panel that draws a metric against a config key or another metric.

    `labels` maps the names of config keys and metrics to the labels in the figure.
    """
    rows = [row for row in rows_with(results, metric) if math.isfinite(results.metrics[metric][row])]
    source = results.table.metrics[name] if is_metric else results.table.config[name]
    rows = [row for row in rows if source[row] is not MISSING]
    column, ys = [source[row] for row in rows], results.metrics[metric][rows]
    left_out = len(results) - len(rows)
    title = "" if left_out == 0 else f"{counted(left_out, 'run')} repeated or without finite values left out"
    x_label, y_label = ((labels or {}).get(each, each) for each in (name, metric))
    is_log_y = _is_wide(ys, _LOG_RATIO_Y)
    if is_metric or is_number_axis(results, name, column):
        xs = floats_of(source)
        is_log_x = _is_wide(xs[rows], _LOG_RATIO_X)
        line = _fitted(results, metric, xs, [row for row in rows if math.isfinite(xs[row])], is_log_x, is_log_y)
        names = [results.keys[row] for row in rows]
        return Scatter(title, x_label, y_label, xs[rows].tolist(), ys.tolist(), names, line, is_log_x, is_log_y)
    categories = distinct(column)
    texts = dict(zip(map(exact_text, categories), short_values(categories), strict=True))
    values: dict[str, list[float]] = {}
    for text, label in texts.items():
        members = [float(number) for value, number in zip(column, ys, strict=True) if exact_text(value) == text]
        values[f"{label} (n={len(members)})"] = members
    return Violins(title, x_label, y_label, values, is_log_y)


def _fitted(results: Results, metric: str, xs: Floats, rows: list[int], is_log_x: bool, is_log_y: bool) -> Line | None:
    """Fit a line to the means of the configs rather than to single runs, because runs of the same config are not independent."""
    configs = by_value(rows, results.config_ids).values()
    means = np.array(config_means(results, metric, rows), dtype=np.float64)
    fit = fit_line(np.array([float(np.mean(xs[members])) for members in configs]), means, is_log_x, is_log_y)
    if fit is None:
        return None
    columns = (each.tolist() for each in (fit.xs, fit.ys, fit.low, fit.high))
    return Line(f"R² = {fit.r_squared:.2f}, {counted(len(means), 'config')}", *columns)


def is_number_axis(results: Results, name: str, column: Column) -> bool:
    """Return whether a key is drawn on a number axis rather than as categories.

    A key that a search varied is drawn on a number axis if its search space is a range of numbers. Any other key is drawn on a
    number axis if its values are numbers, and there are either many different values or only a few runs per value.
    """
    if results.attributes is not None and name in results.attributes:
        return results.attributes[name]
    if not column or not is_numeric(array_of(column)):
        return False
    num_values = len(distinct(column))
    return num_values > MAX_CATEGORIES or len(column) < _MIN_PER_VALUE * num_values


def _is_wide(values: Floats, ratio: float) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() > 0 and finite.max() / finite.min() >= ratio)


# ---- curves


def curves(results: Results, metric: str | None, by: str | Iterable[str] | None) -> Drawing:
    rank = results.ranked_by(metric)
    name = rank.metric
    if by == "key":
        sets = {results.keys[row]: [row] for row in rows_with(results, name)}
    else:
        groups = [group for group in rank_groups(results, by, rank) if group.rows]
        labels = [*_labels([group.values for group in groups[:MAX_CURVES]]), *(group.keys[0] for group in groups[MAX_CURVES:])]
        sets = {label: list(group.rows) for label, group in zip(labels, groups, strict=True)}
    drawn = dict(list(sets.items())[:MAX_CURVES])
    rows = [row for rows in drawn.values() for row in rows]
    logs = {row: found[name] for row, found in results.read_steps([name], rows) if name in found}
    axes = {steps.over for steps in logs.values()}
    if not logs:
        raise SettingError(f"no run has logged `{short_name(name)}`, so there is no curve", known=listed(results.table.metrics))
    if len(axes) > 1:
        raise SettingError(f"`{short_name(name)}` was logged over {' and '.join(sorted(axes))}", hint="select runs that share an axis")
    lines = [_mean_line(label, _units(results, [row for row in rows if row in logs], logs)) for label, rows in drawn.items()]
    best = "best" if has_direction(results.table, name) else "lowest"
    some = f"{best} {len(drawn)} of {len(sets)} groups" if len(sets) > len(drawn) and by != "key" else ""
    some = f"{len(drawn)} of {len(sets)} runs" if len(sets) > len(drawn) and by == "key" else some
    band = "mean over seeds, 95 % interval" if any(line.low is not None for line in lines) else ""
    return Drawing([Lines(", ".join(filter(None, [band, some])), axes.pop(), name, lines)])


def _units(results: Results, rows: list[int], logs: Mapping[int, Steps]) -> list[dict[float, float]]:
    """Return the independent curves of a group: one for each seed or, if the group has several configs, one for each config."""
    curves = {row: dict(zip(logs[row].xs, logs[row].ys, strict=True)) for row in rows}
    configs = by_value(rows, results.config_ids)
    if len(configs) == 1:
        return [*curves.values()]
    found = []
    for members in configs.values():
        xs = {*curves[members[0]]}.intersection(*(curves[row] for row in members[1:]))
        found.append({x: math.fsum(curves[row][x] for row in members) / len(members) for x in xs})
    return found


def _mean_line(label: str, units: Sequence[Mapping[float, float]]) -> Line:
    """Return the mean of the curves at the steps that all of them have. With at least two curves, add the interval of the mean."""
    shared = sorted({*units[0]}.intersection(*units[1:])) if units else []
    values = np.array([[each[x] for x in shared] for each in units], dtype=np.float64).reshape(len(units), len(shared))
    if len(units) < 2:
        return Line(label, shared, values.ravel().tolist())
    with np.errstate(invalid="ignore", over="ignore"):
        mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    margin = t_quantile(len(units) - 1, LEVEL) * sd / math.sqrt(len(units))
    return Line(f"{label} (n={len(units)})", shared, mean.tolist(), (mean - margin).tolist(), (mean + margin).tolist())


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a short label for each group: the values that distinguish it from the others."""
    names = [*dict.fromkeys(name for each in settings for name in each)]
    names = [name for name in names if len(settings) == 1 or varies([each.get(name, MISSING) for each in settings])]
    short = short_names(names, ".")
    texts: dict[str, dict[str, str]] = {}
    for name in names:
        values = distinct([each[name] for each in settings if name in each])
        texts[name] = dict(zip(map(exact_text, values), short_values(values), strict=True))
    parts = [[f"{short[name]}={texts[name][exact_text(each[name])]}" for name in names if name in each] for each in settings]
    labels = [", ".join(each) or "all runs" for each in parts]
    return [label if labels.count(label) == 1 else f"{label} #{number}" for number, label in enumerate(labels, 1)]


# ---- parallel coordinates


def parallel(results: Results, metric: str | None) -> Drawing:
    name, is_greater_better = results.ranked_by(metric)
    rows = [row for row in rows_with(results, name) if math.isfinite(results.metrics[name][row])]
    keys = results.varying[:MAX_AXES]
    if not keys or not rows:
        why = f"no run has a finite `{short_name(name)}`" if not rows else "no config key varies between the runs"
        raise SettingError("parallel coordinates cannot be drawn", why=why)
    short = short_names([*keys, name], ".")
    axes = [_axis(short[key], [results.table.config[key][row] for row in rows]) for key in keys]
    axes.append(_number_axis(name, results.metrics[name][rows], _LOG_RATIO_Y))
    more = len(results.varying) - len(keys)
    title = counted(len(rows), "run") + (f", without {counted(more, 'more key')}" if more else "")
    return Drawing([Parallel(title, axes, is_reversed=not is_greater_better)])


def _axis(name: str, column: Column) -> ParallelAxis:
    values = array_of(column)
    found = distinct(column)
    if is_numeric(values) and len(found) > MAX_CATEGORIES:
        return _number_axis(name, values.astype(np.float64), _LOG_RATIO_X)
    at = {exact_text(value): number / max(1, len(found) - 1) for number, value in enumerate(found)}
    ticks = [*zip(at.values(), short_values(found), strict=True)][:: max(1, math.ceil(len(found) / 12))]
    return ParallelAxis(name, [at.get(exact_text(value), math.nan) for value in column], ticks)


def _number_axis(name: str, values: Array, ratio: float) -> ParallelAxis:
    is_log = _is_wide(values, ratio)
    scaled = np.log(values) if is_log else values
    low, high = float(np.nanmin(scaled)), float(np.nanmax(scaled))
    span = high - low or 1.0
    positions = [0.0, 0.25, 0.5, 0.75, 1.0] if high > low else [0.0]
    texts = [f"{math.exp(low + at * span) if is_log else low + at * span:.3g}" for at in positions]
    return ParallelAxis(name, ((scaled - low) / span).tolist(), [*zip(positions, texts, strict=True)])
