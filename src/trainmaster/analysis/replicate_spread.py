"""Estimates how much a metric varies between replicates of the configs in a store."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from trainmaster.analysis.arms import read_value
from trainmaster.analysis.statistics import mean_and_sd
from trainmaster.config.identity import group_of
from trainmaster.errors import TrainmasterError
from trainmaster.store import Store
from trainmaster.text import counted


class Spread(NamedTuple):
    """The standard deviation of the difference between two paired runs, and how it was determined."""

    sd: float | None
    source: str


def find_spread(store: Store, metric: str, epochs: int | None, excluded: Collection[str]) -> Spread:
    """Estimate the spread of differences from replicates of all configs except the `excluded` groups.

    The groups of the test itself are excluded, because a test must not choose its sample size from its own data. The
    standard deviation of the difference between two independent replicates is sqrt(2) times the standard deviation of
    one replicate. Paired runs usually differ less, so the estimate is conservative.
    """
    groups: dict[str, list[str]] = {}
    for key in store.configs:
        group = group_of_run(store, key)
        if group not in excluded:
            groups.setdefault(group, []).append(key)
    squares, df, num_groups = 0.0, 0, 0
    for keys in groups.values():
        values = [value for key in keys if (value := _value_of(store, key, metric, epochs)) is not None] if len(keys) > 1 else []
        if len(values) > 1:
            squares += (len(values) - 1) * mean_and_sd(values)[1] ** 2
            df, num_groups = df + len(values) - 1, num_groups + 1
    if df < 2 or not squares:
        return Spread(None, f"the store has too few replicates of other configs with `{metric}`")
    source = f"from {counted(df + num_groups, 'replicate')} of {counted(num_groups, 'other config')} in the store"
    return Spread(math.sqrt(2 * squares / df), source)


def group_of_run(store: Store, key: str) -> str:
    """Return the group id that a run shares with its replicates."""
    record = store.configs.record(key)
    group = record.get("group")  # recorded, because only the class of a typed config knows which fields distinguish replicates
    return group if isinstance(group, str) else group_of(record.get("identity", record["config"]), 64)


def _value_of(store: Store, key: str, metric: str, epochs: int | None) -> float | None:
    run = store.run(key)
    outcome = run.outcome_of(run.newest())
    if outcome is None or outcome["outcome"] != "finished":
        return None
    try:
        return read_value(store, key, metric, epochs).value
    except TrainmasterError:  # a different kind of run, without this metric
        return None
