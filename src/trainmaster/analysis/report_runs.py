"""The table of all runs in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainmaster.analysis.columns import floats_of
from trainmaster.analysis.groups import varies
from trainmaster.analysis.report_page import Section, notes, runs_table, section
from trainmaster.store.monitored import RankedBy
from trainmaster.store.run_table import MISSING, Column, RunTable
from trainmaster.text import counted

_MAX_COLUMNS = 200
"""The maximum number of columns for config keys. The same limit applies to metrics."""


def runs_section(runs: RunTable) -> Section:
    numbers = {"config key": len(_varying(runs)) - _MAX_COLUMNS, "metric": len(runs.metrics) - _MAX_COLUMNS}
    left_out = [f"there is no column for {counted(number, f'more {what}')}" for what, number in numbers.items() if number > 0]
    return section("runs", "All runs", runs_table(), notes(left_out))


def runs_columns(runs: RunTable, tags: Mapping[str, tuple[str, ...]], rank: RankedBy | None) -> dict[str, list[Any]]:
    """Return the columns of the table: first those that identify and rank a run, then varying config values, then other metrics.

    The rows are sorted so that the best run comes first.
    """
    ordered = runs.take(_best_first(runs, rank))
    names = sorted(ordered.metrics, key=lambda name: (rank is None or name != rank.metric, name))[:_MAX_COLUMNS]
    metrics = {name: [_metric_cell(value) for value in ordered.metrics[name]] for name in names}
    config = {name: [_config_cell(value) for value in column] for name, column in _varying(ordered)[:_MAX_COLUMNS]}
    found: dict[str, list[Any]] = {"run": ordered.keys, "state": ordered.fact("state")}
    _add(found, {name: metrics.pop(name) for name in names[:1]}, "metric")
    _add(found, config, "config")
    _add(found, {"epoch": ordered.fact("epoch")}, "run")
    _add(found, metrics, "metric")
    _add(found, {"seconds": [None if each is None else round(each, 1) for each in ordered.fact("duration")]}, "run")
    if any(key in tags for key in ordered.keys):
        _add(found, {"tags": [", ".join(tags.get(key, ())) or None for key in ordered.keys]}, "run")
    _add(found, {"reason": [each or None for each in ordered.fact("reason")]}, "run")
    return found


def _add(found: dict[str, list[Any]], columns: Mapping[str, list[Any]], kind: str) -> None:
    """Add columns. If a name such as `lr` is already taken, the new column is called `lr (metric)`."""
    for name, column in columns.items():
        while name in found:
            name = f"{name} ({kind})"
        found[name] = column


def _varying(runs: RunTable) -> list[tuple[str, Column]]:
    return [(name, column) for name, column in runs.config.items() if varies(column)]


def _best_first(runs: RunTable, rank: RankedBy | None) -> list[int]:
    """Sort the rows by the metric that ranks the runs, and then by key. Runs without a number come last."""
    numbers = np.zeros(len(runs)) if rank is None else floats_of(runs.metrics[rank.metric])
    is_descending = rank is not None and rank.is_greater_better
    rows: list[int] = np.lexsort((np.array(runs.keys), -numbers if is_descending else numbers)).tolist()
    return rows


def _metric_cell(value: Any) -> Any:
    return None if value is MISSING else float(f"{value:.6g}") if isinstance(value, float) else value


def _config_cell(value: Any) -> Any:
    return None if value is MISSING else "none" if value is None else value
