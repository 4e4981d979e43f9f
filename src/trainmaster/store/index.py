"""The index: the configs and summaries of all runs in one file, for queries over many runs.

The index is a cache, so you can delete it at any time. Every query lists the folders but, thanks to the index, does not
have to read every file.

- The config of a run is read from the index if the size and modification time of the config file are unchanged.
- The summary of a run is read from the index if the size and modification time of the run's folder are unchanged too,
  and if the newest attempt had ended when the index was written. Any later change to the run requires a new attempt,
  which adds an entry to that folder. The files of a run are always read if the run is in progress,
  was killed or is damaged.
- Labels are not stored in the index.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from trainmaster.config.seed import replicate_facts
from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store.attempt_records import OUTCOME
from trainmaster.store.checksummed_json import Record
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.files import Files
from trainmaster.store.run import Run
from trainmaster.store.run_table import MISSING, Column, Row, RunTable, joined, row_values, table_of
from trainmaster.store.summary import Summary, flat, message_of, summarize_run

PATH = "index/runs.jsonl"
CONFIG_FACTS = ("config_size", "config_time", "secrets", "group", "replicate", "config_seed")
"""The columns of `facts` that are derived from the config."""
Progress = Callable[[list[str]], Iterable[str]]
"""A function that yields the keys that are passed to it, and may show a progress bar while doing so."""
_STALE = 0.01
"""If more than this fraction of the rows is new, the index is written again."""
_PER_LINE = 2000
_TICK = 2.0
"""The resolution of the coarsest file system clocks in seconds.

If a folder changes twice within this time, its timestamp may stay the same.
"""
_NOT_STARTED = (0, 0)
"""The folder fingerprint (size and modification time) that is used for a run without a folder."""
_SUMMARY_FACTS = tuple(each.name for each in fields(Summary) if each.name not in ("key", "tags", "config", "metrics", "best"))

Mark = tuple[int, int]


class _Block(NamedTuple):
    """A line of the index file, and the rows in it whose configs have not changed."""

    line: bytes
    table: RunTable
    rows: list[int]


class Index:
    """Reads the configs and summaries of all runs as tables, from a cache where possible."""

    def __init__(self, files: Files, configs: ConfigArchive) -> None:
        self._files, self._configs = files, configs

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the key and the nested config of each run."""
        table = self.configs()
        return zip(table.keys, table.trees(), strict=True)

    def configs(self) -> RunTable:
        """Return a table with the configs of all runs and the columns in `CONFIG_FACTS`. Damaged configs are left out with a warning."""
        marks = dict(self._configs.marks())
        blocks = list(self._blocks(marks))
        tables = [_config_part(each.table).take(each.rows) for each in blocks]
        known = {key for table in tables for key in table.keys}
        fresh = table_of(self._config_rows({key: mark for key, mark in marks.items() if key not in known}))
        if len(fresh) > len(marks) * _STALE:
            self._write(blocks, fresh)
        return joined([*tables, fresh])

    def runs(
        self, keys: Collection[str] | None = None, progress: Progress = iter, marks: tuple[dict[str, Mark], dict[str, Mark]] | None = None
    ) -> RunTable:
        """Return the summaries of all runs, or of those in `keys`.

        `progress` wraps the loop over the runs whose files have to be read, for example to show a progress bar. If the
        caller has just read the fingerprints (sizes and modification times) of all configs and of all run folders, it
        can pass them as `marks`.
        """
        started, configs = (self.run_marks(), dict(self._configs.marks())) if marks is None else (marks[1], marks[0])
        now = time.time()
        wanted = configs if keys is None else {key: configs[key] for key in keys if key in configs}
        blocks = list(self._blocks(configs))
        tables = [block.table.take(_unchanged(block, started, wanted)) for block in blocks]
        known = {key for table in tables for key in table.keys}
        final: list[Row] = []
        others: list[Row] = []
        for key in progress([key for key in wanted if key not in known]):
            mark = started.get(key, _NOT_STARTED)
            row = self._row(key, wanted[key], mark)
            if row is not None:
                is_recent = mark is not _NOT_STARTED and abs(now - mark[1] / 1e9) < _TICK
                (final if "run_time" in row[1] and not is_recent else others).append(row)
        fresh = table_of(final)
        if len(fresh) > len(configs) * _STALE:
            self._write(blocks, fresh)
        return joined([*tables, fresh, table_of(others)])

    def read(self, marks: Mapping[str, tuple[Mark, Mark | None]]) -> RunTable:
        """Read the summaries of the runs in `marks` from their files, without the index.

        `marks` maps the key of each run to the fingerprints of its config and of its folder (None if the run has no
        folder).
        """
        rows = (self._row(key, config, _NOT_STARTED if run is None else run) for key, (config, run) in marks.items())
        return table_of(row for row in rows if row is not None)

    def written(self) -> Iterator[RunTable]:
        """Yield the tables in the index file without checking whether they are up to date.

        Runs may have been changed or removed since the index was written.
        """
        return (table for _, table in self._tables())

    def run_marks(self) -> dict[str, Mark]:
        """Return a fingerprint (size and modification time) of each run's folder.

        Call this before reading the runs, so that later changes are noticed.
        """
        return {key: mark for folder in self._files.names("stats") for key, mark in self._files.marks(f"stats/{folder}").items()}

    # ---- reading files

    def _config_rows(self, marks: dict[str, Mark]) -> Iterator[Row]:
        """Yield a row with the config of each of these runs. Removed configs are left out, and damaged configs too, with a warning."""
        for key, record in self._configs.records([*marks]):
            yield key, _config_facts(record, marks.pop(key)), flat(record["config"]), {}
        for key, mark in marks.items():
            try:
                record = self._configs.record(key)
            except FileNotFoundError:
                continue
            except (StoreDamagedError, StoreAccessError) as error:
                warnings.warn(f"run {key} is skipped: {message_of(error)}", stacklevel=5)
                continue
            yield key, _config_facts(record, mark), flat(record["config"]), {}

    def _row(self, key: str, config_mark: Mark, run_mark: Mark) -> Row | None:
        """Return the row of a run, or None if the run was removed.

        If the newest attempt has ended, the row includes the fingerprint (size and modification time) of the run's
        folder.
        """
        try:
            record = self._configs.record(key)
        except FileNotFoundError:
            return None
        except (StoreDamagedError, StoreAccessError) as error:
            return key, {"state": "damaged", "reason": message_of(error)}, {}, {}
        run = Run(self._files, key)
        is_over = run_mark is _NOT_STARTED or _has_ended(run)  # check this before reading the rest
        summary = summarize_run(run, record["config"])
        facts = {name: value for name in _SUMMARY_FACTS if (value := getattr(summary, name)) is not None}
        facts |= {f"best.{name}": value for name, value in (summary.best or {}).items()}
        facts |= _config_facts(record, config_mark)
        if is_over and summary.state != "damaged":
            facts |= {"run_size": run_mark[0], "run_time": run_mark[1]}
        return key, facts, flat(record["config"]), dict(summary.metrics)

    # ---- the file

    def _blocks(self, marks: dict[str, Mark]) -> Iterator[_Block]:
        seen: set[str] = set()
        for line, table in self._tables():
            found = zip(table.keys, *_columns(table, "config_size", "config_time"), strict=True)
            rows = [row for row, (key, size, moment) in enumerate(found) if marks.get(key) == (size, moment) and key not in seen]
            seen.update(table.keys[row] for row in rows)
            yield _Block(line, table, rows)

    def _tables(self) -> Iterator[tuple[bytes, RunTable]]:
        for line in self._lines():
            try:
                yield line, RunTable.decode(line)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):  # not written by this version
                return

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines of the index file, or nothing if the file's checksum does not match."""
        try:
            with self._files.open(PATH) as file:
                header = file.readline(100).strip()
                digest = hashlib.sha256()
                while block := file.read(2**20):
                    digest.update(block)
                if digest.hexdigest().encode() != header:
                    return
                file.seek(len(header) + 1)
                yield from file
        except (FileNotFoundError, StoreAccessError, StoreDamagedError):
            return

    def _write(self, blocks: list[_Block], fresh: RunTable) -> None:
        """Write the index with all rows that are up to date and the new rows.

        A long line is copied unchanged if all its rows are up to date. All other rows are encoded again.
        """
        lines, rest = [], [fresh]
        replaced = {*fresh.keys}
        for line, table, rows in blocks:
            kept = [row for row in rows if table.keys[row] not in replaced]
            if len(kept) == len(table) >= _PER_LINE // 2:
                lines.append(line)
            else:
                rest.append(table.take(kept))
        table = joined(rest)
        lines += [table.take(range(start, min(start + _PER_LINE, len(table)))).encode() for start in range(0, len(table), _PER_LINE)]
        body = b"".join(lines)
        try:
            self._files.replace(PATH, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except (StoreAccessError, StoreDamagedError):  # the store is read-only, so the index cannot be updated
            return


def summary_at(table: RunTable, row: int, tags: tuple[str, ...] = ()) -> Summary:
    """Return the summary of the run in one row of a table."""
    facts = dict(row_values(table.facts, row))
    best = {name.removeprefix("best."): value for name, value in facts.items() if name.startswith("best.")}
    own = {name: facts[name] for name in _SUMMARY_FACTS if name in facts}
    config = next(RunTable([""], config={name: [value] for name, value in row_values(table.config, row)}).trees())
    return Summary(key=table.keys[row], tags=tags, config=config, metrics=dict(row_values(table.metrics, row)), best=best or None, **own)


def _has_ended(run: Run) -> bool:
    """Return whether the newest attempt has an outcome. If reading fails, return False. The run's summary then reports the error."""
    try:
        return run.files.has(run.path(run.newest(), OUTCOME))
    except (StoreDamagedError, StoreAccessError):
        return False


def _config_part(table: RunTable) -> RunTable:
    return RunTable(table.keys, {name: column for name, column in table.facts.items() if name in CONFIG_FACTS}, table.config)


def _columns(table: RunTable, *names: str) -> list[Column]:
    return [table.facts.get(name, [MISSING] * len(table)) for name in names]


def _unchanged(block: _Block, started: dict[str, Mark], wanted: Collection[str]) -> list[int]:
    """Return the rows of those requested runs that had ended when the index was written and have not changed since then."""
    keys = block.table.keys
    sizes, times = _columns(block.table, "run_size", "run_time")
    return [row for row in block.rows if started.get(key := keys[row], _NOT_STARTED) == (sizes[row], times[row]) and key in wanted]


def _config_facts(record: Record, mark: Mark) -> dict[str, Any]:
    facts: dict[str, Any] = {"config_size": mark[0], "config_time": mark[1]}
    if record.get("secrets"):
        facts["secrets"] = record["secrets"]
    if "group" in record:  # only for a typed config
        return {**facts, "group": str(record["group"])[:16], "replicate": str(record["replicate"])[:16]}
    group, replicate, seed = replicate_facts(record["identity" if "identity" in record else "config"], record["hash"], 16)
    return {**facts, "group": group, "replicate": replicate, "config_seed": seed}
