"""Tables of results: one row per run, or one row per group with the mean of each metric and its spread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.analysis.groups import metric_counts, rank_groups
from trainmaster.errors import SettingError
from trainmaster.store.run_query import sorted_by
from trainmaster.store.run_table import MISSING

if TYPE_CHECKING:
    from trainmaster.analysis.results import Results

Table = dict[str, list[Any]]
"""The columns of a table. Each cell is a plain value, an `Estimate`, or None if there is no value."""
_MAX_METRICS = 6


class Estimate(NamedTuple):
    """The mean of a metric over the seeds of a group."""

    mean: float
    sd: float
    low: float
    high: float
    n: int
    is_partial: bool = False
    """Whether some runs of the group do not have the metric, so `n` is smaller than the size of the group."""


def run_table(results: Results, metrics: Iterable[str] | None = None) -> Table:
    """Return one row per run: its key, the config values that vary, and its metrics."""
    names = metric_names(results, metrics)
    seeds = [name for name, values in results.config.items() if name.endswith("seed") and len({*map(str, values.tolist())}) > 1]
    table: Table = {"key": list(results.keys)}
    for name in [*results.varying, *seeds]:
        table[name] = [None if value is MISSING else value for value in results.table.config[name]]
    states = results.table.fact("state")
    if len({*states}) > 1:
        table[_free("state", table)] = states
    table[_free("epoch", table)] = results.table.fact("epoch")
    for name in names:
        table[name if name not in table else f"{name} (metric)"] = [
            None if value is MISSING else value for value in results.table.metrics[name]
        ]
    return table


def group_table(results: Results, metrics: str | Iterable[str] | None = None, by: str | Iterable[str] | None = None) -> Table:
    """Return one row per group: the config values that distinguish it, and an `Estimate` of each metric.

    The first metric ranks the groups, and the best group comes first. If nothing says which values of this
    metric are better, the group with the lowest mean comes first. If the runs of a group were trained for different
    numbers of epochs, a column shows the smallest and the largest number, such as `3-30`.
    """
    names = metric_names(results, [metrics] if isinstance(metrics, str) else metrics)
    found = {name: rank_groups(results, by, results.ranked_by(name)) for name in names}
    first = found[names[0]]
    others = {name: {group.id: group for group in groups} for name, groups in found.items()}
    table: Table = {name: [group.values.get(name) for group in first] for name in first.names if any(name in each.values for each in first)}
    alike = [name for name in names if found[name].unit == first.unit]  # if only one config has a metric, its `n` counts seeds, not configs
    sizes = {group.id: max(others[name][group.id].n for name in alike) for group in first}
    table[_free("configs" if first.unit == "config" else "n", table)] = [sizes[group.id] for group in first]
    epochs = results.table.fact("epoch")
    spans = [sorted({epoch for row in group.rows if (epoch := epochs[row]) is not None}) for group in first]
    if any(len(span) > 1 for span in spans):
        table[_free("epoch", table)] = ["-".join(map(str, dict.fromkeys((span[0], span[-1])))) if span else None for span in spans]
    for name in names:
        groups = [others[name][group.id] for group in first]
        table[name if name not in table else f"{name} (metric)"] = [
            Estimate(each.mean, each.sd, each.low, each.high, each.n, name not in alike or each.n < sizes[each.id]) if each.n else None
            for each in groups
        ]
    return table


def sorted_table(table: Table, name: str, is_descending: bool) -> Table:
    """Sort the rows by one column. Rows without a value come last."""
    endings = [each for each in table if each == name] or [each for each in table if each.endswith((f".{name}", f"/{name}"))]
    if len(endings) != 1:
        fact = f"`{name}` is ambiguous" if endings else f"the table has no column `{name}`"
        raise SettingError(fact, known=", ".join(endings or table))
    values = [each.mean if isinstance(each, Estimate) else each for each in table[endings[0]]]
    order = sorted_by([*range(len(values))], values, is_descending)
    return {each: [column[row] for row in order] for each, column in table.items()}


def metric_names(results: Results, metrics: Iterable[str] | None) -> list[str]:
    """Return the full names of metrics. By default, return at most six, starting with the metric that ranks the runs."""
    if metrics is not None:
        return [results.ranked_by(name).metric for name in metrics]
    counts, monitored = metric_counts(results.table)
    if not counts:
        results.ranked_by(None)  # raises an error
    return sorted(counts, key=lambda name: (name not in monitored, name.startswith("train/"), -counts[name], name))[:_MAX_METRICS]


def _free(name: str, table: Table) -> str:
    return name if name not in table else f"{name} (run)"
