"""Selection: which runs meet a condition, and in which order they come.

What configs alone can tell is told by the index. The records of a run are read only where they make a difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from trainmaster.errors import StoreDamagedError, StoreError
from trainmaster.store.codec import decode
from trainmaster.store.conditions import as_given
from trainmaster.store.printable import printable
from trainmaster.store.store import Store
from trainmaster.store.summary import Summary, flat, numbers_of, summarize
from trainmaster.store.where import OWN, Nothing, Where, at_path, endings, metric_named, suggestion

Told = Callable[[list[str]], Iterable[str]]
"""Goes through keys whose runs are read one by one, and may tell of it: that can take long."""
_NUM_ASKED = 20
"""In how many runs a metric is looked for that a shortened key of the config could also mean."""


def select(store: Store, where: Where, told: Told = iter) -> list[str]:
    """The keys of all runs that meet a condition, in no order. A name that no run has is an error."""
    return _Selection(store, where, told).keys()


class _Selection:
    """One walk over a store: what is decided, and what is known of the runs that are still open."""

    def __init__(self, store: Store, where: Where, told: Told) -> None:
        self._store, self._where, self._told = store, where, told
        self._names = {each.name for each in where.comparisons()}
        self._chosen: list[str] = []
        self._refused: list[str] = []
        self._open: dict[str, dict[str, Any]] = {}
        """By key, the values of the names that are known."""

    def keys(self) -> list[str]:
        others = self._names.difference(OWN)
        others -= self._ask_index(others)
        others -= self._ask_shortened(others) if others else set()
        if (self._chosen or self._refused or self._open) and (others or not self._names.isdisjoint(("state", "epoch"))):
            self._ask_runs(others)
        return [*self._chosen, *(key for key, values in self._open.items() if self._verdict(values, Nothing.MISSING))]

    def _verdict(self, values: Mapping[str, Any], otherwise: Nothing) -> bool | None:
        return self._where.verdict(lambda name: values.get(name, otherwise))

    def _ask_index(self, names: set[str]) -> set[str]:
        """Decide what configs, keys and labels can decide; the names that some config has."""
        found: set[str] = set()
        tags = self._store.tags.all() if "tag" in self._names else {}
        for key, tree in self._store.index:
            values: dict[str, Any] = {"key": key, "tag": frozenset(tags.get(key, ()))}
            for name in names:
                if (value := at_path(tree, name)) is not Nothing.MISSING:
                    values[name] = as_given(value)
                    found.add(name)
            verdict = self._verdict(values, Nothing.UNKNOWN)
            if verdict is None:
                self._open[key] = values
            else:
                (self._chosen if verdict else self._refused).append(key)
        return found

    def _ask_shortened(self, names: set[str]) -> set[str]:
        """Take names for the last parts of keys of configs, where they are those of one key only; the names that are."""
        full: dict[str, set[str]] = {name: set() for name in names}
        for key, tree in self._store.index:
            for name, each, value in _shortened(tree, names):
                full[name].add(each)
                if key in self._open:
                    self._open[key][name] = as_given(value)
        asked = itertools.islice(self._store.configs, _NUM_ASKED) if any(full.values()) else ()
        numbers = {name for key in asked for name in _facts(self._store, key, False).metrics}
        taken = {name for name in names if full[name] and name not in numbers}
        for name in taken:
            if len(several := sorted(full[name] | endings(name, numbers))) > 1:
                self._refuse(
                    name, f"`{printable(name)}` may be one of several", f"write it in full: {', '.join(map(printable, several[:10]))}"
                )
        for values in self._open.values():
            for name in names - taken:
                values.pop(name, None)
        return taken

    def _ask_runs(self, metrics: set[str]) -> None:
        """Read the records of the runs that are open; `metrics` are the names that no config has."""
        found = {key: _facts(self._store, key, "state" in self._names) for key in self._told([*self._open])}
        known = {name for each in found.values() for name in each.metrics}
        full = {name: self._metric(name, known) for name in metrics}
        for key, each in found.items():
            values = self._open[key]
            values |= {"state": each.state, "epoch": Nothing.MISSING if each.epoch is None else each.epoch}
            values |= {name: each.metrics.get(full[name], Nothing.MISSING) for name in metrics}

    def _metric(self, name: str, known: set[str]) -> str:
        """The full name of a metric. Where the open runs do not have it, the others are read to learn whether any has it at all."""
        full, seen = metric_named(name, known), {*known}
        for key in self._told([*self._refused, *self._chosen]) if full is None else ():
            seen |= _facts(self._store, key, False).metrics.keys()
            full = metric_named(name, seen)
            if full is not None:
                break
        if full is None:
            self._refuse(name, f"no run has `{printable(name)[:80]}`", suggestion(name, [*OWN, *seen, *_config_keys(self._store)]))
        return full

    def _refuse(self, name: str, fact: str, hint: str) -> NoReturn:
        self._where.refuse(next(each for each in self._where.comparisons() if each.name == name), fact, hint)


def sort(store: Store, keys: list[str], name: str, is_descending: bool = False, told: Told = iter) -> list[str]:
    """Keys by `key`, `time`, `epoch`, a value of the config or a metric; runs without one come last, and so does NaN."""
    return _ordered(keys, _values(store, keys, name, told), is_descending)


def _values(store: Store, keys: list[str], name: str, told: Told) -> Mapping[str, Any]:
    """What runs are sorted by."""
    if name == "key":
        return {key: key for key in keys}
    if name in ("time", "epoch"):
        facts = {key: _facts(store, key, name == "time") for key in told(keys)}
        return {key: each.changed if name == "time" else each.epoch for key, each in facts.items()}
    wanted = {*keys}
    found = {key: as_given(value) for key, tree in store.index if key in wanted and (value := at_path(tree, name)) is not Nothing.MISSING}
    if found or not keys:
        return found
    by_config: dict[str, dict[str, Any]] = {}
    for key, tree in store.index:
        for _, full, value in _shortened(tree, {name}) if key in wanted else ():
            by_config.setdefault(full, {})[key] = as_given(value)
    numbers = {key: _facts(store, key, False).metrics for key in told(keys)}
    by_metric: dict[str, dict[str, Any]] = {}
    for key, each in numbers.items():
        for full, value in each.items():
            by_metric.setdefault(full, {})[key] = value
    best = name if name in by_metric else metric_named(name, [*by_metric, *by_config])
    if best is None:
        hint = suggestion(name, ["key", "time", "epoch", *by_metric, *_config_keys(store)])
        raise StoreError(f"no run has `{printable(name)[:80]}` to be sorted by", hint=hint)
    return by_metric.get(best) or by_config[best]


def _ordered(keys: list[str], values: Mapping[str, Any], is_descending: bool) -> list[str]:
    def rank(key: str) -> tuple[int, Any]:
        value = values[key]
        return (0, value) if isinstance(value, int | float) else (1, str(value))

    there = [key for key in keys if values.get(key) is not None and values[key] == values[key]]
    is_there = {*there}
    return sorted(there, key=rank, reverse=is_descending) + [key for key in keys if key not in is_there]


def _shortened(tree: Mapping[str, Any], names: set[str]) -> Iterator[tuple[str, str, Any]]:
    """Where a stored config has a key whose last part is one of `names`: the name, the key, and the value."""
    todo: list[tuple[str, Mapping[str, Any]]] = [("", tree)]
    while todo:
        at, group = todo.pop()
        for name in names if at else ():
            if (value := at_path(group, name)) is not Nothing.MISSING:
                yield name, f"{at}{name}", value
        todo += [(f"{at}{part}.", value) for part, value in group.items() if type(value) is dict]


def _facts(store: Store, key: str, is_whole: bool) -> Summary:
    """A summary, or without `is_whole` the numbers of one only, which are read faster."""
    if is_whole:
        return summarize(store, key)
    run = store.run(key)
    try:
        number = run.newest()
        record, preview = run.status_of(number), run.preview_of(number)
        if record is None or preview is None:  # it saved nothing, so that what counts lies further back
            status, numbers = run.status(), run.preview()
        else:
            status, numbers = decode(record["status"]), decode(preview["preview"])
        epoch = (status or {}).get("epoch")
        return Summary(key, "", epoch=epoch if isinstance(epoch, int) and epoch >= 0 else None, metrics=numbers_of(numbers))
    except (StoreDamagedError, FileNotFoundError):
        return Summary(key, "damaged")


def _config_keys(store: Store) -> set[str]:
    return {name for _, tree in store.index for name, _ in flat(as_given(tree))}
