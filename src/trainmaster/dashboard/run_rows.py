"""Filters, sorts and optionally groups the rows of the table of runs. A response contains only some of the rows.

A column is identified by its kind and its name: `config:train.lr`, `metric:valid/loss`, `fact:epoch`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from trainmaster.dashboard.live_table import View
from trainmaster.errors import MetricNameError, StoreError
from trainmaster.store.query import parse_where
from trainmaster.store.replicates import Stats, group_rows, stats_of
from trainmaster.store.run_query import matching_rows, resolve_name, sorted_by
from trainmaster.store.run_table import MISSING, Column, RunTable

MAX_ROWS = 500
"""The maximum number of rows in one request."""
MAX_VARYING = 200
_MAX_KEPT = 8
_MAX_VALUES = 12
"""The maximum number of values of a config key that the page suggests while you type."""
_NUM_PROBED = 2000
ARCHIVED = "archived"
"""The label of runs that are hidden by default."""
FACTS = ("key", "state", "epoch", "step", "seed", "duration", "started", "changed", "tag", "best")
"""The properties of runs by which rows can be sorted."""
_SHOWN = ("state", "epoch", "num_epochs", "step", "changed", "progressed", "started", "duration", "seed", "group")
"""The properties of runs that a row contains."""


class Query(NamedTuple):
    where: str = ""
    sort: str = ""
    """The column to sort by, with `-` in front for descending order. If empty, the most recently started run comes first."""
    is_grouped: bool = False
    has_archived: bool = False
    """Whether runs with the label `archived` are included. A filter on labels also includes them."""


@dataclass(frozen=True)
class Selection:
    """The result of a query: the matching rows in order. If runs are grouped, a row contains several runs."""

    groups: Sequence[Sequence[int]]
    num_runs: int
    """How many runs match the query."""
    varying: Sequence[str]
    """The config keys in which the matching runs differ. Keys that occur in more runs come first."""


def select(view: View, query: Query) -> Selection:
    """Return the rows that match a query. Raise `StoreError` or `MetricNameError` if the filter or the sort column is invalid."""
    table = view.table
    where = parse_where(query.where) if query.where.strip() else None
    rows = [*range(len(table))] if where is None else matching_rows(table, where, view.tags)
    archived = {key for key, labels in view.tags.items() if ARCHIVED in labels}
    if archived and not query.has_archived and not (where and any(each.name == "tag" for each in where.comparisons())):
        rows = [row for row in rows if table.keys[row] not in archived]
    started, keys = table.fact("started"), table.keys
    rows.sort(key=keys.__getitem__)
    rows.sort(key=lambda row: -(started[row] or 0))  # a stable sort: runs that started at the same time stay sorted by key
    groups = group_rows(table, rows) if query.is_grouped else [*zip(rows, strict=True)]
    if query.sort:
        name = query.sort.removeprefix("-")
        groups = sorted_by(groups, _sort_values(view, groups, name), query.sort.startswith("-"))
    return Selection(groups, len(rows), _varying(table, rows))


class Selections:
    """A cache of the rows of recent queries, so that scrolling does not filter and sort them again."""

    def __init__(self) -> None:
        self._number = -1
        self._found: dict[Query, Selection] = {}
        self._lock = threading.Lock()

    def of(self, view: View, query: Query) -> Selection:
        with self._lock:  # if several requests need the same rows, only one computes them
            if view.number != self._number or len(self._found) >= _MAX_KEPT:
                self._number, self._found = view.number, {}
            if query not in self._found:
                self._found[query] = select(view, query)
            return self._found[query]


def window(view: View, query: Query, selection: Selection, columns: Sequence[str], offset: int, limit: int) -> dict[str, Any]:
    """Return up to `limit` rows of a query, starting at `offset`, with the values of the columns in `columns`."""
    shown = selection.groups[offset : offset + min(limit, MAX_ROWS)]
    found = [_column(view.table, name) for name in columns]
    make = _group_row if query.is_grouped else _run_row
    return {
        "version": view.number,
        "num_rows": len(selection.groups),
        "num_runs": selection.num_runs,
        "num_all": len(view.table),
        "varying": selection.varying,
        "offset": offset,
        "rows": [make(view, group, found) for group in shown],
    }


def _column(table: RunTable, name: str) -> Column:
    kind, _, rest = name.partition(":")
    columns = {"config": table.config, "metric": table.metrics, "fact": table.facts}.get(kind)
    if columns is None:
        raise StoreError(f"`{name:.80}` is not a column", hint="a column is `config:KEY`, `metric:NAME` or `fact:NAME`")
    return columns.get(rest) or [MISSING] * len(table)


def _sort_values(view: View, groups: Sequence[Sequence[int]], name: str) -> list[Any]:
    table = view.table
    kind, _, rest = name.partition(":")
    is_metric = kind == "metric"
    if kind in ("config", "metric"):
        column = _column(table, name)
    elif kind == "fact" and rest in FACTS:
        column = _fact_column(view, rest)
    else:
        try:
            found = resolve_name(name, table.config, table.metrics)
        except MetricNameError as error:
            raise StoreError(f"cannot sort by `{name:.80}`: {error.fact}", hint=error.rows.get("hint")) from None
        column, is_metric = found.column(table), found.is_metric
    if is_metric and any(len(group) > 1 for group in groups):
        return [_finished_stats(table, group, column).mean for group in groups]
    return [column[group[0]] for group in groups]


def _fact_column(view: View, name: str) -> Column:
    if name == "key":
        return [*view.table.keys]
    if name == "tag":
        return [",".join(view.tags.get(key, ())) or MISSING for key in view.table.keys]
    return view.table.facts.get("best.value" if name == "best" else name) or [MISSING] * len(view.table)


# ---- rows


def _run_row(view: View, group: Sequence[int], columns: Sequence[Column]) -> dict[str, Any]:
    row = group[0]
    facts = view.table.facts

    def fact(name: str) -> Any:
        value = facts[name][row] if name in facts else None
        return None if value is MISSING else value

    key = view.table.keys[row]
    return {
        "key": key,
        **{name: fact(name) for name in _SHOWN},
        "reason": fact("reason") or "",
        "tags": view.tags.get(key, ()),
        "best": {name: fact(f"best.{name}") for name in ("metric", "mode", "value", "epoch", "step")} if fact("best.metric") else None,
        "values": [column[row] for column in columns],
    }


def _group_row(view: View, group: Sequence[int], columns: Sequence[Column]) -> dict[str, Any]:
    """Return a row for runs that differ only in their seed: their common config values, and the mean of each metric over finished runs."""
    table = view.table
    states = Counter(table.facts["state"][row] for row in group)
    metrics = {id(column) for column in table.metrics.values()}
    values: list[Any] = []
    for column in columns:
        if id(column) in metrics:
            stats = _finished_stats(table, group, column)
            values.append(None if stats.mean is None else stats._asdict())
        else:
            first = column[group[0]]
            values.append(first if all(column[row] == first for row in group) else None)
    return {**_run_row(view, group[:1], ()), "keys": [table.keys[row] for row in group], "states": states, "values": values}


def _finished_stats(table: RunTable, rows: Iterable[int], column: Column) -> Stats:
    """Return the statistics of a column over the finished runs among these rows."""
    states = table.facts.get("state", [])
    return stats_of(column[row] for row in rows if states[row] == "finished")


# ---- columns of the table


def _varying(table: RunTable, rows: Sequence[int]) -> list[str]:
    if len(rows) < 2:
        return []
    chosen: Callable[[Column], Sequence[Any]] = itemgetter(*rows) if len(rows) < len(table) else (lambda column: column)
    found = []
    for name, column in table.config.items():
        values = chosen(column)
        # `count` runs in C, which matters for 100,000 runs. It treats 1, 1.0 and True as equal, so types are compared too.
        if values.count(values[0]) != len(values) or len({*map(type, values)}) > 1:
            found.append((values.count(MISSING), name))
        if len(found) >= MAX_VARYING:
            break
    return [name for _, name in sorted(found)]


def describe_columns(view: View) -> dict[str, list[dict[str, Any]]]:
    """Return all columns by kind, each with a few values that the page suggests while you type."""
    return {
        "config": [{"name": name, **_describe(column)} for name, column in view.table.config.items()],
        "metrics": [{"name": name, **_describe(column, has_values=False)} for name, column in view.table.metrics.items()],
    }


def _describe(column: Column, has_values: bool = True) -> dict[str, Any]:
    kinds = {*map(type, column)} - {type(MISSING)}
    values: dict[str, Any] = {}
    for value in column[:_NUM_PROBED] if has_values else ():
        if value is not MISSING and len(values) < _MAX_VALUES:
            values.setdefault(repr(value), value)
    return {"is_number": kinds <= {int, float, type(None)} and kinds != {type(None)}, "values": [*values.values()]}


def monitored(view: View) -> dict[str, str]:
    """Return the metrics by which runs choose their best checkpoint, each with "min" or "max". The most common metric comes first."""
    pairs = zip(view.table.fact("best.metric"), view.table.fact("best.mode"), strict=True)
    counts = Counter((metric, str(mode)) for metric, mode in pairs if isinstance(metric, str))
    return {metric: mode for (metric, mode), _ in counts.most_common()}
