"""Selects runs by an expression, and sorts them.

Configs come from the index. The records of a run are read only if its config is not enough to decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from trainmaster.errors import MetricNameError, StoreDamagedError, StoreError
from trainmaster.store.codec import decode
from trainmaster.store.dict_filter import Nothing, restore_floats
from trainmaster.store.metric_names import listed, matching_metrics, resolve_metric, short_name, suggest
from trainmaster.store.query import OWN, Where, at_path
from trainmaster.store.store import Store
from trainmaster.store.summary import Summary, flat, numbers_of, summarize

Progress = Callable[[list[str]], Iterable[str]]
"""Iterates over the keys of runs that are read, and may show a progress bar."""
_NUM_PROBED = 20
"""The number of runs whose metrics are checked for a name that may also be the last part of a config key."""


def select(store: Store, where: Where, progress: Progress = iter) -> list[str]:
    """The keys of all runs that meet a condition, unordered. A name that no run has is an error."""
    return _Selection(store, where, progress).keys()


class _Selection:
    """One query: the selected runs, and the known values of runs that are still undecided."""

    def __init__(self, store: Store, where: Where, progress: Progress) -> None:
        self._store, self._where, self._progress = store, where, progress
        self._names = {each.name for each in where.comparisons()}
        self._selected: list[str] = []
        self._rejected: list[str] = []
        self._undecided: dict[str, dict[str, Any]] = {}
        """By key, the values of the names that were looked up."""

    def keys(self) -> list[str]:
        others = self._names.difference(OWN)
        others -= self._read_configs(others)
        others -= self._read_short_names(others) if others else set()
        if (self._selected or self._rejected or self._undecided) and (others or not self._names.isdisjoint(("state", "epoch"))):
            self._read_runs(others)
        return [*self._selected, *(key for key, values in self._undecided.items() if self._verdict(values, Nothing.MISSING))]

    def _verdict(self, values: Mapping[str, Any], default: Nothing) -> bool | None:
        return self._where.verdict(lambda name: values.get(name, default))

    def _read_configs(self, names: set[str]) -> set[str]:
        """Decide the runs for which config, key and labels are enough; return the names that some config has."""
        config_names: set[str] = set()
        tags = self._store.tags.all() if "tag" in self._names else {}
        for key, tree in self._store.index:
            values: dict[str, Any] = {"key": key, "tag": frozenset(tags.get(key, ()))}
            for name in names:
                if (value := at_path(tree, name)) is not Nothing.MISSING:
                    values[name] = restore_floats(value)
                    config_names.add(name)
            verdict = self._verdict(values, Nothing.UNKNOWN)
            if verdict is None:
                self._undecided[key] = values
            else:
                (self._selected if verdict else self._rejected).append(key)
        return config_names

    def _read_short_names(self, names: set[str]) -> set[str]:
        """Look up names that are the last part of a single config key; return these names."""
        full: dict[str, set[str]] = {name: set() for name in names}
        for key, tree in self._store.index:
            for name, each, value in _shortened(tree, names):
                full[name].add(each)
                if key in self._undecided:
                    self._undecided[key][name] = restore_floats(value)
        probed = itertools.islice(self._store.configs, _NUM_PROBED) if any(full.values()) else ()
        metrics = {name for key in probed for name in _summary(self._store, key, False).metrics}
        resolved = {name for name in names if full[name] and name not in metrics}
        for name in resolved:
            self._refuse_ambiguous(name, sorted({*full[name], *matching_metrics(name, metrics)}))
        for values in self._undecided.values():
            for name in names - resolved:
                values.pop(name, None)
        return resolved

    def _read_runs(self, metrics: set[str]) -> None:
        """Read the undecided runs; `metrics` are the names that no config has."""
        summaries = {key: _summary(self._store, key, "state" in self._names) for key in self._progress([*self._undecided])}
        known = {name for each in summaries.values() for name in each.metrics}
        full = {name: self._metric(name, known) for name in metrics}
        for key, each in summaries.items():
            values = self._undecided[key]
            values |= {"state": each.state, "epoch": Nothing.MISSING if each.epoch is None else each.epoch}
            values |= {name: each.metrics.get(full[name], Nothing.MISSING) for name in metrics}

    def _metric(self, name: str, known: set[str]) -> str:
        """The full name of a metric. If no undecided run has it, read the others: a name that no run has is an error."""
        full, seen = matching_metrics(name, known), {*known}
        for key in self._progress([*self._rejected, *self._selected]) if not full else ():
            seen |= _summary(self._store, key, False).metrics.keys()
            full = matching_metrics(name, seen)
            if full:
                break
        if not full:
            keys = _config_keys(self._store)
            hint = suggest(name, [*OWN, *seen, *keys]) or f"names: {listed([*OWN, *seen])}; config keys: {listed(keys)}"
            self._refuse(name, f"no run has `{short_name(name)}`", hint)
        self._refuse_ambiguous(name, full)
        return full[0]

    def _refuse_ambiguous(self, name: str, matches: list[str]) -> None:
        if len(matches) > 1:
            self._refuse(name, f"`{short_name(name)}` is ambiguous", f"use the full name: {listed(matches)}")

    def _refuse(self, name: str, fact: str, hint: str) -> NoReturn:
        self._where.refuse(next(each for each in self._where.comparisons() if each.name == name), fact, hint)


def sort(store: Store, keys: list[str], name: str, is_descending: bool = False, progress: Progress = iter) -> list[str]:
    """Sort keys by `key`, `time`, `epoch`, a config value or a metric. Runs without a value, or with NaN, come last."""
    return _ordered(keys, _values(store, keys, name, progress), is_descending)


def _values(store: Store, keys: list[str], name: str, progress: Progress) -> Mapping[str, Any]:
    """The sort value of each run that has one."""
    if name == "key":
        return {key: key for key in keys}
    if name in ("time", "epoch"):
        summaries = {key: _summary(store, key, name == "time") for key in progress(keys)}
        return {key: each.changed if name == "time" else each.epoch for key, each in summaries.items()}
    wanted = {*keys}
    values = {
        key: restore_floats(value) for key, tree in store.index if key in wanted and (value := at_path(tree, name)) is not Nothing.MISSING
    }
    if values or not keys:
        return values
    by_config: dict[str, dict[str, Any]] = {}
    for key, tree in store.index:
        for _, full, value in _shortened(tree, {name}) if key in wanted else ():
            by_config.setdefault(full, {})[key] = restore_floats(value)
    by_metric: dict[str, dict[str, Any]] = {}
    for key in progress(keys):
        for full, value in _summary(store, key, False).metrics.items():
            by_metric.setdefault(full, {})[key] = value
    if not by_config:
        return by_metric[_metric_to_sort_by(store, name, by_metric)]
    matches = [name] if name in by_metric else [*matching_metrics(name, by_metric), *by_config]
    if len(matches) > 1:
        raise StoreError(f"`{short_name(name)}` is ambiguous", known=listed(matches), hint="use the full name")
    return by_metric.get(matches[0]) or by_config[matches[0]]


def _metric_to_sort_by(store: Store, name: str, known: Iterable[str]) -> str:
    if matching_metrics(name, known):
        return resolve_metric(name, known)
    own, keys = ("key", "time", "epoch"), _config_keys(store)
    raise MetricNameError(
        f"cannot sort by `{short_name(name)}`: no run has it",
        known=f"metrics: {listed(known) or 'none'}\nconfig: {listed(keys) or 'nothing'}\nand {', '.join(own)}",
        hint=suggest(name, [*own, *known, *keys]) or "use one of these",
    )


def _ordered(keys: list[str], values: Mapping[str, Any], is_descending: bool) -> list[str]:
    def rank(key: str) -> tuple[int, Any]:
        value = values[key]
        return (0, value) if isinstance(value, int | float) else (1, str(value))

    has_value = {key for key in keys if values.get(key) is not None and values[key] == values[key]}
    ranked = sorted((key for key in keys if key in has_value), key=rank, reverse=is_descending)
    return ranked + [key for key in keys if key not in has_value]


def _shortened(tree: Mapping[str, Any], names: set[str]) -> Iterator[tuple[str, str, Any]]:
    """The keys of a stored config whose last part is one of `names`: the name, the full key, and the value."""
    todo: list[tuple[str, Mapping[str, Any]]] = [("", tree)]
    while todo:
        prefix, group = todo.pop()
        for name in names if prefix else ():
            if (value := at_path(group, name)) is not Nothing.MISSING:
                yield name, f"{prefix}{name}", value
        todo += [(f"{prefix}{part}.", value) for part, value in group.items() if type(value) is dict]


def _summary(store: Store, key: str, is_whole: bool) -> Summary:
    """The summary of a run, or without `is_whole` only its epoch and metrics, which is faster."""
    if is_whole:
        return summarize(store, key)
    run = store.run(key)
    try:
        number = run.newest()
        record, preview = run.status_of(number), run.preview_of(number)
        if record is None or preview is None:  # it has not saved yet, so its predecessor has the values
            status, numbers = run.status(), run.preview()
        else:
            status, numbers = decode(record["status"]), decode(preview["preview"])
        epoch = (status or {}).get("epoch")
        return Summary(key, "", epoch=epoch if isinstance(epoch, int) and epoch >= 0 else None, metrics=numbers_of(numbers))
    except (StoreDamagedError, FileNotFoundError):
        return Summary(key, "damaged")


def _config_keys(store: Store) -> set[str]:
    return {name for _, tree in store.index for name, _ in flat(restore_floats(tree))}
