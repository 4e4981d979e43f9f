"""A table with the states, config values and metrics of many runs. The index stores this table, and queries read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainmaster.store.dict_filter import Condition, Nothing, value_at, value_tests

MISSING = Nothing.MISSING
Column = list[Any]
"""One value for each run, or `MISSING` where a run has none."""
Columns = dict[str, Column]
Row = tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""One run as a tuple: its key, `Summary` fields, config values by dotted key, and metrics."""
_FORMAT = 1
_CHUNK = 2000
"""The number of rows that are converted to or from dicts at a time."""
_SCALARS = (str, int, float, bool, type(None))
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class RunTable:
    """A table with one row for each run, and three groups of columns: `facts`, `config` and `metrics`.

    Columns in which no run has a value are left out.
    """

    keys: list[str] = field(default_factory=list)
    facts: Columns = field(default_factory=dict)
    """The fields of a `Summary`, such as the state and the epoch, and values that only the index needs."""
    config: Columns = field(default_factory=dict)
    """The config values by dotted key."""
    metrics: Columns = field(default_factory=dict)
    """The last value of each metric, by its name."""

    def __len__(self) -> int:
        return len(self.keys)

    def parts(self) -> tuple[Columns, Columns, Columns]:
        return self.facts, self.config, self.metrics

    def fact(self, name: str) -> Column:
        """Return a column of `facts`, with None where a run has no value."""
        return [None if value is MISSING else value for value in self.facts.get(name, [MISSING] * len(self))]

    def take(self, rows: Sequence[int]) -> RunTable:
        """Return a table that contains only these rows, in this order."""
        if len(rows) == len(self) and [*rows] == [*range(len(self))]:
            return self

        def taken(columns: Columns) -> Columns:
            found = {name: _taken(column, rows) for name, column in columns.items()}
            return {name: column for name, column in found.items() if any(value is not MISSING for value in column)}

        return RunTable(_taken(self.keys, rows), *map(taken, self.parts()))

    def trees(self) -> Iterator[dict[str, Any]]:
        """Yield the config of each run as a nested dict.

        >>> list(RunTable(["a", "b"], config={"lr": [1, 2], "model.width": [8, MISSING]}).trees())
        [{'lr': 1, 'model': {'width': 8}}, {'lr': 2}]
        """
        paths = {tuple(name.split(".")): column for name, column in self.config.items()}
        for start in range(0, len(self), _CHUNK):  # in a large store, all dicts together would need more memory than the table
            rows = slice(start, min(start + _CHUNK, len(self)))
            yield from _nested({path: column[rows] for path, column in paths.items()}, rows.stop - start)

    def matching(self, condition: Condition | None) -> list[int]:
        """Return the rows whose configs meet a condition. A config that lacks one of the keys does not meet it."""
        rows = [*range(len(self))]
        for key, is_accepted in value_tests(condition):
            column = self._values(key)
            rows = [row for row in rows if (value := column[row]) is not MISSING and is_accepted(value)]
        return rows

    def _values(self, key: str) -> Column:
        """Return the values or groups with a dotted key."""
        inside = {name: column for name, column in self.config.items() if name.startswith(f"{key}.")}
        own = {key: self.config[key]} if key in self.config else {}
        if inside:
            return [value_at(tree, key.split(".")) for tree in RunTable(self.keys, config=own | inside).trees()]
        return own.get(key, [MISSING] * len(self))

    def encode(self) -> bytes:
        """Return the table as a line of JSON."""
        parts = [{name: _encoded(column) for name, column in columns.items()} for columns in self.parts()]
        return _encode([_FORMAT, self.keys, *parts]).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> RunTable:
        """Return the table that `encode` converted to this line. Raise `ValueError` if the line has a different format."""
        number, keys, *parts = json.loads(line)
        if number != _FORMAT or len(parts) != 3 or not all(type(key) is str for key in keys):
            raise ValueError(f"this is not format {_FORMAT}")
        return cls(keys, *({name: _decoded(column, len(keys)) for name, column in columns.items()} for columns in parts))


def table_of(rows: Iterable[Row]) -> RunTable:
    remaining = iter(rows)
    return joined([_small_table(chunk) for chunk in iter(lambda: [*islice(remaining, _CHUNK)], [])])


def _small_table(rows: list[Row]) -> RunTable:
    """Return a table of these rows. Equal strings share one object, which saves memory because most strings occur in many rows."""
    texts: dict[str, str] = {}

    def columns(parts: list[Mapping[str, Any]]) -> Columns:
        names = dict.fromkeys(name for part in parts for name in part)
        found = {name: [part.get(name, MISSING) for part in parts] for name in names}
        return {name: [texts.setdefault(each, each) if type(each) is str else each for each in column] for name, column in found.items()}

    return RunTable([row[0] for row in rows], *(columns([row[part] for row in rows]) for part in (1, 2, 3)))  # type: ignore[misc]


def joined(tables: Sequence[RunTable]) -> RunTable:
    """Return one table with the rows of all tables, in order."""
    tables = [table for table in tables if len(table)]
    if len(tables) == 1:
        return tables[0]

    def columns(part: int) -> Columns:
        found: Columns = {}
        for name in dict.fromkeys(name for table in tables for name in table.parts()[part]):
            column: Column = []
            for table in tables:
                own = table.parts()[part].get(name)
                column += [MISSING] * len(table) if own is None else own
            found[name] = column
        return found

    return RunTable([key for table in tables for key in table.keys], columns(0), columns(1), columns(2))


def _taken(column: Column, rows: Sequence[int]) -> Column:
    if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= len(column):
        return column[rows.start : rows.stop]
    return [column[row] for row in rows]


def row_values(columns: Columns, row: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each column in which this row has a value."""
    return ((name, value) for name, column in columns.items() if (value := column[row]) is not MISSING)


def _nested(columns: Mapping[tuple[str, ...], Column], num_rows: int) -> list[dict[str, Any]]:
    groups: dict[str, dict[tuple[str, ...], Column]] = {}
    for path, column in columns.items():
        groups.setdefault(path[0], {})[path[1:]] = column
    names, values, has_missing = [], [], False
    for name, members in groups.items():
        own = members.pop((), None)
        if members:
            nested: Column = [tree or MISSING for tree in _nested(members, num_rows)]
            own = nested if own is None else [one if other is MISSING else other for one, other in zip(own, nested, strict=True)]
        assert own is not None
        names.append(name)
        values.append(own)
        has_missing = has_missing or MISSING in own
    if not names:
        return [{} for _ in range(num_rows)]
    rows = zip(*values, strict=True)
    if not has_missing:
        return [dict(zip(names, row, strict=True)) for row in rows]
    return [{name: value for name, value in zip(names, row, strict=True) if value is not MISSING} for row in rows]


def _encoded(column: Column) -> Any:
    """Encode a column compactly. If all values are equal, write only one. If some rows have no value, list the rows that have one."""
    is_full = MISSING not in column
    values = column if is_full else [value for value in column if value is not MISSING]
    first = values[0] if values else None
    if len(values) > 1 and type(first) in _SCALARS and all(type(each) is type(first) and each == first for each in values):
        values = [first]
    return values if is_full else {"rows": [row for row, value in enumerate(column) if value is not MISSING], "values": values}


def _decoded(column: Any, num_rows: int) -> Column:
    if type(column) is list:
        full = column * num_rows if len(column) == 1 else column
    else:
        rows, values = column["rows"], column["values"]
        full = [MISSING] * num_rows
        for row, value in zip(rows, values * len(rows) if len(values) == 1 else values, strict=True):
            full[row] = value
    if len(full) != num_rows:
        raise ValueError("a column has the wrong length")
    return full
