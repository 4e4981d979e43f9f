"""Groups runs that are replicates of one config or that have the same values for some keys, and computes statistics of each group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.analysis.columns import exact_text
from trainmaster.analysis.statistics import mean_interval
from trainmaster.config.to_plain import is_same
from trainmaster.config.varying import short_values
from trainmaster.errors import SettingError
from trainmaster.store.metric_names import better_of, listed, short_name
from trainmaster.store.monitored import RankedBy
from trainmaster.store.query import condition_of
from trainmaster.store.run_table import MISSING, RunTable

if TYPE_CHECKING:
    import pandas as pd

    from trainmaster.analysis.results import Results

STATISTICS = ("n", "missing", "mean", "median", "sd", "low", "high")


@dataclass(frozen=True)
class Group:
    """Runs with the same settings, and the statistics of one metric over them."""

    id: Any
    """The id of the group. It is the same for all metrics."""
    values: Mapping[str, Any]
    """The values of the config keys in which the groups differ."""
    where: str
    """The condition that the runs of the group meet, with exact values, for `compare`, `results[...]` and `ls --where`."""
    keys: tuple[str, ...]
    """The keys of the runs that have the metric. If several runs have the same config and seed, only one is used."""
    rows: tuple[int, ...]
    """The rows of these runs in the results."""
    numbers: tuple[float, ...]
    """The independent values of the metric: one for each run or, if any group has several configs, one mean for each config."""
    missing: int
    """How many replicates do not have the metric."""
    repeated: int
    """How many runs were ignored because another run has the same config and seed."""
    mean: float
    median: float
    sd: float
    low: float
    """The lower end of the 95 % confidence interval of the mean.

    The interval is NaN for fewer than two values, for equal values, and if a value is not finite.
    """
    high: float

    @property
    def n(self) -> int:
        return len(self.numbers)

    @property
    def label(self) -> str:
        """The values that distinguish the group, as text: `lr=0.1, arch=ViT`. Numbers are rounded; `where` has the exact values."""
        return ", ".join(f"{name}={short_values([value])[0]}" for name, value in self.values.items()) or "all runs"


@dataclass(frozen=True)
class Groups(Sequence[Group]):
    """Groups of runs, the best first."""

    metric: str
    names: tuple[str, ...]
    """The config keys in which the groups differ."""
    unit: str
    """What `n` counts: "seed", or "config" if a group has several configs. Each config then has one value, the mean over its seeds."""
    members: tuple[Group, ...]

    @property
    def num_lucky(self) -> int:
        """How many groups with a single run come before the first group with several runs.

        Such a group may rank this high only because of a lucky seed.
        """
        return next((at for at, group in enumerate(self) if len(group.rows) > 1 and not math.isnan(group.mean)), 0)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, at: Any) -> Any:
        return self.members[at]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The table of groups: one list for each config key in which the groups differ, and one for each statistic."""
        names = {name: [group.values.get(name) for group in self] for name in self.names}
        return names | {name: [getattr(group, name) for group in self] for name in STATISTICS}

    @property
    def df(self) -> pd.DataFrame:
        from trainmaster.analysis.frames import import_pandas

        return import_pandas().DataFrame(self.columns)

    def _repr_html_(self) -> str:
        from trainmaster.analysis.table_text import to_html

        return to_html(self.columns, num_rows=len(self))


def metric_counts(table: RunTable) -> tuple[dict[str, int], dict[str, str | None]]:
    """Return how many runs have each metric, and the mode ("min" or "max") of each metric that runs monitor."""
    counts = {name: sum(value is not MISSING for value in column) for name, column in table.metrics.items()}
    return counts, _monitored_modes(table)


def has_direction(table: RunTable, metric: str) -> bool:
    """Return whether the runs monitor a metric, given by its full name, or its name shows whether larger values are better."""
    return _monitored_modes(table).get(metric) in ("min", "max") or better_of(metric) is not None


def _monitored_modes(table: RunTable) -> dict[str, str | None]:
    modes = dict(zip(table.fact("best.metric"), table.fact("best.mode"), strict=True))
    return {name: mode for name, mode in modes.items() if isinstance(name, str)}


def rows_with(results: Results, metric: str, among: Iterable[int] | None = None) -> list[int]:
    """Return the rows that have a metric. If several runs have the same config and seed, only the first is returned."""
    replicates, column = results.replicate_ids, results.table.metrics[metric]
    found: dict[Any, int] = {}
    for row in range(len(results)) if among is None else among:
        if column[row] is not MISSING:
            found.setdefault(replicates[row], row)
    return [*found.values()]


def by_value(rows: Iterable[int], values: Sequence[Any]) -> dict[Any, list[int]]:
    """Map each value to the rows that have it, in the order in which the values first appear."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        found.setdefault(values[row], []).append(row)
    return found


def config_means(results: Results, metric: str, rows: Iterable[int]) -> list[float]:
    """Return the mean of a metric over the seeds of each config."""
    values = results.metrics[metric]
    return [float(np.mean(values[members])) for members in by_value(rows, results.config_ids).values()]


def rank_groups(results: Results, by: str | Iterable[str] | None, rank: RankedBy) -> Groups:
    """Return the groups, ranked as `rank` says. See `Results.groups`."""
    names, ids = (results.varying, results.config_ids) if by is None else _ids_by(results, [by] if isinstance(by, str) else by)
    return _make_groups(results, rank.metric, names, ids, rank.is_greater_better)


def _ids_by(results: Results, by: Iterable[str]) -> tuple[list[str], list[Any]]:
    """Return the full names of config keys, and an id for each run. The id consists of the run's values for these keys."""
    names = _config_names(results, by)
    return names, [tuple(map(exact_text, row)) for row in zip(*(results.table.config[each] for each in names), strict=True)]


def _config_names(results: Results, names: Iterable[str]) -> list[str]:
    found = [results.find(name) for name in names]
    metrics = [name.full for name in found if name.is_metric]
    if metrics:
        name = short_name(metrics[0])
        raise SettingError(f"`{name}` is a metric, not a config key", known=listed(results.varying), hint=f'groups(metric="{name}")')
    return [name.full for name in found]


def _make_groups(results: Results, metric: str, names: Sequence[str], ids: Sequence[Any], is_greater_better: bool) -> Groups:
    """Group the runs that have the same id. The best group comes first."""
    rows_by_id = {id: (rows, rows_with(results, metric, rows)) for id, rows in by_value(range(len(results)), ids).items()}
    configs, replicates = results.config_ids, results.replicate_ids
    is_mixed = any(len({configs[row] for row in present}) > 1 for _, present in rows_by_id.values())
    found = []
    for id, (rows, present) in rows_by_id.items():
        numbers = config_means(results, metric, present) if is_mixed else [float(results.metrics[metric][row]) for row in present]
        num_replicates = len({replicates[row] for row in rows})
        interval = mean_interval(numbers)
        columns = {name: [results.table.config[name][row] for row in rows] for name in names}
        shared = {name: column[0] for name, column in columns.items() if not varies(column)}
        found.append(
            Group(
                id=id,
                values={name: value for name, value in shared.items() if value is not MISSING},
                where=condition_of(shared) or f"key in ({', '.join(results.keys[row] for row in rows)})",
                keys=tuple(results.keys[row] for row in present),
                rows=tuple(present),
                numbers=tuple(numbers),
                missing=num_replicates - len(present),
                repeated=len(rows) - num_replicates,
                median=float(np.median(numbers)) if numbers else math.nan,
                **{name: getattr(interval, name) for name in ("mean", "sd", "low", "high")},
            )
        )
    ranked = sorted(found, key=lambda group: (math.isnan(group.mean), -group.mean if is_greater_better else group.mean))
    return Groups(metric, tuple(names), "config" if is_mixed else "seed", tuple(ranked))


def varies(column: Sequence[Any]) -> bool:
    """Return whether the values of a column differ."""
    first = column[0]
    return any(each is not first and not (type(each) is type(first) and is_same(each, first)) for each in column)
