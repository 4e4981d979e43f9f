"""A table of the runs in a store. All viewers share the same table.

The store is scanned only when a page requests data, and at most once per second. After a slow scan, the next one starts later, so that
the process spends at most a tenth of its time on scans. A scan lists folders and reads the runs that have changed. If scans are slow,
viewers get the previous table while the next scan is running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.errors import StoreAccessError, StoreDamagedError, TrainmasterError
from trainmaster.store import Store
from trainmaster.store.files import Files
from trainmaster.store.index import Mark
from trainmaster.store.keys import attempt_folder
from trainmaster.store.run_table import MISSING, Column, Columns, RunTable, joined
from trainmaster.store.store import check_format

PERIOD = 1.0
"""The minimum time between two scans, in seconds."""
_MAX_SHARE = 0.1
_SLOW = 0.25
"""If the last scan took longer than this, in seconds, the next one runs in the background."""
_MAX_AGE = 30.0
"""The maximum age of the table that viewers get, in seconds."""
_LIVE = ("running", "held?")
SHOWN = (
    *("state", "reason", "epoch", "step", "num_epochs", "changed", "progressed", "duration", "seed", "group", "replicate"),
    *("best.metric", "best.mode", "best.value", "best.epoch", "best.step"),
)
"""The properties of runs that are kept in memory."""
_NUM_PROBED = 200
_MANY = 5000
"""If the index has at least this many runs, the dashboard shows the runs in the index before the first scan."""
_FIRST_SCAN = 3.0
"""If the dashboard shows the runs in the index first, the first scan starts after this many seconds."""
_MARKS = ("config_size", "config_time", "run_size", "run_time")
_MAX_SINGLE = 500
"""If more runs than this have changed, they are read through the index instead of one by one."""


@dataclass(frozen=True)
class View:
    """A snapshot of the table."""

    number: int
    """The version of the table. It increases with each change."""
    table: RunTable = field(default_factory=RunTable)
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    """The row number of each run, by key."""


class LiveTable:
    """The current table of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._view: View | None = None
        self._files: Mapping[str, int] = {}
        """For each run, a hash of the sizes and modification times of its config and its folder at the last scan.

        Runs whose files have not changed are not read again. A hash needs less memory than the sizes and times.
        """
        self._unfinished: Mapping[str, Any] = {}
        """For each run that has not ended, the sizes and times of its files before the run was read."""
        self._scanned, self._seconds = 0.0, 0.0
        self._lock = threading.Lock()
        self._is_scanning = threading.Event()

    def current(self) -> View:
        """Return the current table. The store is scanned again if the last scan is too old."""
        if self._view is None:
            with self._lock:
                if self._view is None:
                    self._load_index()
        view, age = self._view, time.monotonic() - self._scanned
        if view is not None and age < max(PERIOD, self._seconds / _MAX_SHARE):
            return view
        if view is not None and self._seconds > _SLOW and age < _MAX_AGE:
            self.scan_aside()
            return view
        with self._lock:
            if self._view is view or self._view is None:  # unless another thread scanned while this one waited
                self._scan()
            assert self._view is not None
            return self._view

    def forget(self) -> None:
        """Make the next request scan the store again. Call this after this process has changed the store."""
        self._scanned, self._seconds = 0.0, 0.0

    def scan_aside(self) -> None:
        """Start a scan in a background thread, unless one is already running."""
        if not self._is_scanning.is_set():
            self._is_scanning.set()
            threading.Thread(target=self._scan_in_thread, name="scan", daemon=True).start()

    def _scan_in_thread(self) -> None:
        try:
            with self._lock:
                self._scan()
        except (TrainmasterError, OSError):  # a request reports the error as soon as the last table is too old
            pass
        finally:
            self._is_scanning.clear()

    def _load_index(self) -> None:
        """If the store is large, load the table from the index, because a scan takes seconds. The first scan starts soon afterwards."""
        check_format(self._store)
        marks: dict[str, int] = {}
        tables: list[RunTable] = []
        seen: dict[str, dict[Any, Any]] = {}
        for written in self._store.index.written():
            block = written
            if None in block.fact("run_time") or not marks.keys().isdisjoint(block.keys):
                is_over = [moment is not None for moment in block.fact("run_time")]
                block = block.take([row for row, key in enumerate(block.keys) if is_over[row] and key not in marks])
            config_size, config_time, size, moment = (block.fact(name) for name in _MARKS)
            runs: list[Mark] = [*zip(size, moment, strict=True)]
            # `_scan` computes the same hashes, so the first scan finds the runs that have changed since the index was written.
            marks.update(zip(block.keys, map(hash, zip(zip(config_size, config_time, strict=True), runs, strict=True)), strict=True))
            tables.append(_compact(_completed(block, dict(zip(block.keys, runs, strict=True))), seen))
        if len(marks) < _MANY:
            return
        table = joined(tables)
        self._view = View(1, table, self._store.tags.all(), {key: row for row, key in enumerate(table.keys)})
        self._files = marks
        self._scanned, self._seconds = time.monotonic(), _FIRST_SCAN * _MAX_SHARE

    def _scan(self) -> None:
        started = time.monotonic()
        cpu = time.thread_time()
        old = self._view or View(0)
        check_format(self._store)  # a newer version of trainmaster may have converted the store in the meantime
        self._store.files.names("previews")  # if the store cannot be read, raise one error instead of one per run
        configs, runs = dict(self._store.configs.marks()), self._store.index.run_marks()
        files = {key: hash((mark, runs.get(key))) for key, mark in configs.items()}
        tags = self._store.tags.all()
        unfinished = {key: _file_marks(self._store, key) for key in _unfinished(old.table) if key in configs}
        same = [row for row, key in enumerate(old.table.keys) if self._is_same(old.table, row, key, files, unfinished)]
        known = {old.table.keys[row] for row in same}
        changed = {key: (mark, runs.get(key)) for key, mark in configs.items() if key not in known}
        if changed or len(same) != len(old.table) or tags != old.tags or self._view is None:
            index = self._store.index
            fresh = index.read(changed) if len(changed) <= _MAX_SINGLE else index.runs([*changed], marks=(configs, runs))
            fresh = _compact(_completed(fresh, runs))
            table = joined([old.table.take(same), fresh]) if same else fresh
            self._view = View(old.number + 1, table, tags, {key: row for row, key in enumerate(table.keys)})
        self._files, self._unfinished = files, unfinished
        self._scanned, self._seconds = time.monotonic(), min(time.thread_time() - cpu, time.monotonic() - started)

    def _is_same(self, table: RunTable, row: int, key: str, files: Mapping[str, int], unfinished: Mapping[str, Any]) -> bool:
        """Return whether a run is unchanged since the last scan.

        A run that was in progress is always treated as changed, because its process may have been killed.
        """
        is_same = key in files and files[key] == self._files.get(key) and unfinished.get(key) == self._unfinished.get(key)
        return is_same and table.facts["state"][row] not in _LIVE


def _unfinished(table: RunTable) -> list[str]:
    """Return the keys of the runs that have not ended. Their records can change even if no new attempt starts."""
    return [key for key, mark in zip(table.keys, table.fact("is_over"), strict=True) if mark is None]


def _file_marks(store: Store, key: str) -> Any:
    files: Files = store.files
    try:
        number = store.run(key).newest()
        return [files.marks(attempt_folder(archive, key, number)) for archive in ("stats", "previews")] if number else None
    except (StoreDamagedError, StoreAccessError) as error:  # the run is read again when the message changes
        return str(error)


def _completed(table: RunTable, marks: Mapping[str, Mark]) -> RunTable:
    """Return the table with only the properties that pages show, and with the time at which each run was last started.

    If a run has not recorded its seed, the seed in its config is used.
    """
    made = table.fact("config_time")
    started: Column = [(marks[key][1] if key in marks else made[row] or 0) / 1e9 for row, key in enumerate(table.keys)]
    seeds = [own if recorded is None else recorded for recorded, own in zip(table.fact("seed"), table.fact("config_seed"), strict=True)]
    facts = {name: table.facts[name] for name in SHOWN if name in table.facts}
    facts["is_over"] = [mark is not None or MISSING for mark in table.fact("run_time")]
    return RunTable(table.keys, {**facts, "started": started, "seed": seeds}, table.config, table.metrics)


def _compact(table: RunTable, seen: dict[str, dict[Any, Any]] | None = None) -> RunTable:
    """Return a copy of the table in which equal values of a column share one object, so that 100,000 runs need little memory.

    `seen` holds the values of each column. Pass the same dict for all tables that will be joined.
    """
    known: dict[str, dict[Any, Any]] = {} if seen is None else seen

    def compact(columns: Columns) -> Columns:
        return {name: _shared(column, known.setdefault(name, {})) for name, column in columns.items()}

    return RunTable(table.keys, compact(table.facts), compact(table.config), table.metrics)


def _shared(column: Column, seen: dict[Any, Any]) -> Column:
    if column and column[0] is column[-1] and column.count(column[0]) == len(column):  # all values are the same object; this check is fast
        return column
    probe, kinds = column[:_NUM_PROBED], {*map(type, column)}
    if len(kinds) > 1 or not kinds <= {str, int, float}:
        return [seen.setdefault((type(value), value), value) if isinstance(value, str | int | float) else value for value in column]
    if len({*probe}) > len(probe) / 2 and len(probe) == _NUM_PROBED:  # most values differ
        return column
    return [*map(seen.setdefault, column, column)]
