"""Selects and sorts runs.

Configs are read from the index. The records of a run are read only if its config is not enough to decide whether the run matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import MetricNameError
from trainmaster.store.dict_filter import Nothing
from trainmaster.store.index import Progress
from trainmaster.store.metric_names import listed, matching_metrics, short_name, suggest
from trainmaster.store.query import OWN, Where
from trainmaster.store.run_table import MISSING, Column, RunTable

if TYPE_CHECKING:
    from trainmaster.store.store import Store

Tags = Mapping[str, Collection[str]]
"""The labels of each run by key. Runs without labels are left out."""
_NUM_PROBED = 20
"""If a name may be the last part of a config key, this many runs are checked for a metric with the same name."""


class Name(NamedTuple):
    """The config key or metric that a name in an expression refers to."""

    full: str
    is_metric: bool

    def column(self, table: RunTable) -> Column:
        columns = table.metrics if self.is_metric else table.config
        return columns.get(self.full) or [MISSING] * len(table)


def select(store: Store, where: Where, progress: Progress = iter) -> list[str]:
    """Return the keys of all runs that meet a condition, in any order. Raise an error if the condition contains a name that no run has."""
    configs = store.index.configs()
    tags = store.tags.all() if "tag" in _names(where) else {}
    known = _config_names(store, where, configs)
    verdicts = _verdicts(configs, where, known, tags, Nothing.UNKNOWN)
    selected = [key for key, verdict in zip(configs.keys, verdicts, strict=True) if verdict]
    undecided = [key for key, verdict in zip(configs.keys, verdicts, strict=True) if verdict is None]
    missing = [name for name in _names(where) if name not in OWN and name not in known]
    if not configs.keys or not (undecided or missing):
        return selected
    table = store.index.runs(undecided, progress)
    is_all = len(undecided) == len(configs)
    others = configs if is_all or all(matching_metrics(name, table.metrics) for name in missing) else store.index.runs(None, progress)
    names = known | {name: _resolve(where, name, configs.config, {*table.metrics, *others.metrics}) for name in missing}
    verdicts = _verdicts(table, where, names, tags, Nothing.MISSING)
    return [*selected, *(key for key, verdict in zip(table.keys, verdicts, strict=True) if verdict)]


def matching_rows(table: RunTable, where: Where, tags: Tags) -> list[int]:
    """Return the indices of the table rows that meet a condition. Raise an error if the condition contains a name that no run has."""
    if not table.keys:
        return []
    names = {name: _resolve(where, name, table.config, table.metrics) for name in _names(where) if name not in OWN}
    return [row for row, verdict in enumerate(_verdicts(table, where, names, tags, Nothing.MISSING)) if verdict]


def _names(where: Where) -> list[str]:
    return [*dict.fromkeys(each.name for each in where.comparisons())]


def _verdicts(table: RunTable, where: Where, names: Mapping[str, Name], tags: Tags, default: Nothing) -> list[bool | None]:
    """Return for each run whether it meets a condition, or None if that is not known yet.

    `default` is used as the value of every name for which the table has no column.
    """
    columns: dict[str, Sequence[Any]] = {name: each.column(table) for name, each in names.items()}
    columns |= {"key": table.keys, "tag": [frozenset(tags.get(key, ())) for key in table.keys]}
    if default is Nothing.MISSING:
        columns |= {name: table.facts.get(name, [MISSING] * len(table)) for name in ("state", "epoch")}
    used = [name for name in _names(where) if name in columns]
    rows = zip(*(columns[name] for name in used), strict=True) if used else [()] * len(table)
    found = []
    for row in rows:
        values = dict(zip(used, row, strict=True))
        found.append(where.verdict(lambda name, values=values: values.get(name, default)))  # type: ignore[misc]
    return found


def _config_names(store: Store, where: Where, configs: RunTable) -> dict[str, Name]:
    """Return the names in an expression that refer to config keys, each with the key that it refers to.

    A name may be a full key or the last part of one.
    """
    names = [name for name in _names(where) if name not in OWN]
    exact = {name: Name(name, False) for name in names if name in configs.config}
    endings = {name: found for name in names if name not in exact and (found := _endings(name, configs.config))}
    metrics = store.index.runs(configs.keys[:_NUM_PROBED]).metrics if endings else {}
    return exact | {name: _resolve(where, name, configs.config, metrics) for name in endings if name not in metrics}


def _resolve(where: Where, name: str, config: Iterable[str], metrics: Iterable[str]) -> Name:
    """Return the config key or metric that `name` refers to. If this fails, the error shows the position of `name` in the condition."""
    try:
        return resolve_name(name, config, metrics, OWN)
    except MetricNameError as error:
        where.refuse(next(each for each in where.comparisons() if each.name == name), error.fact, error.rows["hint"])


def resolve_name(name: str, config: Iterable[str], metrics: Iterable[str], own: Sequence[str] = ()) -> Name:
    """Return the config key or metric that `name` refers to. `name` may be a full name or the last part of one.

    Raise `MetricNameError` if the name is unknown or ambiguous. For an unknown name, the error may also suggest names in `own`.
    """
    keys, known = [*config], [*metrics]
    if name in keys:
        return Name(name, False)
    if name in known:
        return Name(name, True)
    found = [*(Name(each, False) for each in _endings(name, keys)), *(Name(each, True) for each in matching_metrics(name, known))]
    if len(found) == 1:
        return found[0]
    if found:
        raise MetricNameError(f"`{short_name(name)}` is ambiguous", hint=f"use the full name: {listed(each.full for each in found)}")
    hint = (
        suggest(name, [*own, *known, *keys, *(key.rpartition(".")[2] for key in keys)])
        or f"names: {listed([*own, *known])}; config keys: {listed(keys)}"
    )
    raise MetricNameError(f"no run has `{short_name(name)}`", hint=hint)


def _endings(name: str, keys: Iterable[str]) -> list[str]:
    return sorted(key for key in keys if key.endswith(f".{name}"))


# ---- sorting


def sort(store: Store, keys: list[str], name: str, is_descending: bool = False, progress: Progress = iter) -> list[str]:
    """Sort keys by `key`, `time`, `epoch`, a config value or a metric. Runs without a value, or with NaN, come last."""
    if name == "key":
        return sorted(keys, reverse=is_descending)
    configs = store.index.configs()
    is_of_config = name not in ("time", "epoch") and name in configs.config
    table = configs if is_of_config else store.index.runs(keys, progress)
    values = dict(zip(table.keys, _sort_values(table, name), strict=True))
    return sorted_by([*keys], [values.get(key, MISSING) for key in keys], is_descending)


def _sort_values(table: RunTable, name: str) -> Column:
    if name in ("time", "epoch"):
        return table.facts.get("changed" if name == "time" else name, [MISSING] * len(table))
    try:
        return resolve_name(name, table.config, table.metrics).column(table)
    except MetricNameError as error:
        if "ambiguous" in error.fact:
            raise
        own = ("key", "time", "epoch")
        raise MetricNameError(
            f"cannot sort by `{short_name(name)}`: no run has it",
            known=f"metrics: {listed(table.metrics) or 'none'}\nconfig: {listed(table.config) or 'nothing'}\nand {', '.join(own)}",
            hint=suggest(name, [*own, *table.metrics, *table.config]) or "use one of these",
        ) from None


def sorted_by(items: list[Any], values: Sequence[Any], is_descending: bool = False) -> list[Any]:
    """Sort items by their values, with numbers before text. Items without a value, or with NaN, come last."""

    def rank(at: int) -> tuple[int, Any]:
        value = values[at]
        return (0, value) if isinstance(value, int | float) else (1, str(value))

    has_value = [value is not MISSING and value is not None and value == value for value in values]
    ranked = sorted((at for at in range(len(items)) if has_value[at]), key=rank, reverse=is_descending)
    return [items[at] for at in [*ranked, *(at for at in range(len(items)) if not has_value[at])]]
