"""Reads the event logs of runs as columns of numbers. If a log has grown, only the new lines are read."""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, NamedTuple

from trainmaster.arguments import is_number
from trainmaster.errors import StoreDamagedError
from trainmaster.store import Run
from trainmaster.store.attempt_records import EVENTS
from trainmaster.store.codec import decode
from trainmaster.store.events import is_whole_line, seed_of
from trainmaster.store.files import Files
from trainmaster.store.history import AXES

MAX_VALUES = 3_000_000
"""The maximum number of logged numbers to keep in memory."""
MAX_TEXTS = 2000
MIXED = "mixed"
"""The value of `Series.over` for a metric whose unit changed, for example from epochs to updates."""
_BLOCK = 8 * 2**20


@dataclass
class Series:
    """The values of one metric, in the order in which they were logged."""

    over: str = ""
    """The unit of `x`: "epoch", "update", "batch" or "sample". It is empty if no unit was logged, and "mixed" if the unit changed."""
    number: array[float] = field(default_factory=lambda: array("d"))
    """The index of each event in the log."""
    x: array[float] = field(default_factory=lambda: array("d"))
    """The step at which each value was logged, in the unit `over`, or NaN if it is unknown."""
    value: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))


class Position(NamedTuple):
    """How far training had progressed at the end of an epoch."""

    number: int
    """The index of the event in the log."""
    epoch: float
    update: float
    num_batches: float
    """The number of batches in this epoch, or NaN if they were not counted."""
    num_samples: float


@dataclass
class LogColumns:
    """The part of an event log that has been read, as columns."""

    series: dict[str, Series] = field(default_factory=dict)
    texts: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Events that are not numbers, each with its index in the log."""
    positions: list[Position] = field(default_factory=list)
    size: int = 0
    num_events: int = 0
    num_values: int = 0


class AttemptLog(NamedTuple):
    """The log of one attempt of a run."""

    attempt: int
    log: LogColumns
    last: float
    """The number of events that are still valid. The next attempt discarded all later events. For the newest attempt, this is infinite."""


class EventColumns:
    """A cache of the event logs that were used most recently."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, int], LogColumns] = OrderedDict()
        self._lock = threading.Lock()

    def chain(self, run: Run) -> list[AttemptLog]:
        """Return the logs of the attempts in the run's chain, oldest first."""
        counts = {link.attempt: inf if link.num_events is None else link.num_events for link in reversed(run.chain())}
        return [AttemptLog(attempt, self.of(run, attempt), last) for attempt, last in counts.items()]

    def of(self, run: Run, attempt: int) -> LogColumns:
        """Return the log of one attempt, up to its current end."""
        path = run.path(attempt, EVENTS)
        with self._lock:
            mark = run.files.mark(path)
            log = self._logs.pop((run.key, attempt), None)
            if log is None or mark is None or mark[0] < log.size:
                log = LogColumns()
            has_grown = mark is not None and mark[0] > log.size
            if has_grown:
                _read_on(run.files, path, log)
            self._logs[run.key, attempt] = log
            while has_grown and len(self._logs) > 1 and sum(each.num_values for each in self._logs.values()) > MAX_VALUES:
                self._logs.popitem(last=False)
            return log


def _read_on(files: Files, path: str, log: LogColumns) -> None:
    """Read the complete lines that were appended since the last read."""
    seed = seed_of(path)
    for lines in _line_blocks(files, path, log.size):
        whole = []
        for number, line in enumerate(lines, log.num_events):
            if not is_whole_line(line, number, seed):
                break
            whole.append(line)
        for event in _parsed(whole):
            _add(log, event)
            log.num_events += 1
        log.size += sum(map(len, whole))
        if len(whole) < len(lines):
            return


def _line_blocks(files: Files, path: str, start: int) -> Iterator[list[bytes]]:
    try:
        with files.open(path) as file:
            file.seek(start)
            rest = b""
            while block := file.read(_BLOCK):
                lines = (rest + block).splitlines(keepends=True)
                rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
                if lines:
                    yield lines
    except FileNotFoundError:
        return


def _parsed(lines: list[bytes]) -> list[Any]:
    """Parse all lines in one call, which is much faster than one call for each line."""
    try:
        found: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return found
    except (ValueError, RecursionError):
        pass
    return [None] * len(lines)  # the checksum is correct, but trainmaster did not write these lines


def _add(log: LogColumns, event: Any) -> None:
    if not isinstance(event, dict):
        return
    tag, value, time = event.get("tag"), _number(event.get("value")), _number(event.get("time"))
    over = event.get("over")
    x = _number(event.get("step", event.get("epoch")))
    if isinstance(position := event.get("position"), dict):
        counts = [_number(position.get(name)) for name in ("epoch", "update", "num_batches", "num_samples")]
        log.positions.append(Position(log.num_events, *(nan if count is None else count for count in counts)))
    if isinstance(tag, str) and value is not None:
        _append(log, tag, over if over in AXES else "", x, value, time)
    elif isinstance(event.get("eval"), dict):
        for name, each in event["eval"].items():
            number = _number(each)
            if number is not None:
                _append(log, name, "epoch", x, number, time)
    elif len(log.texts) < MAX_TEXTS:
        log.texts.append((log.num_events, {name: each for name, each in event.items() if name not in ("n", "crc")}))


def _append(log: LogColumns, name: str, over: str, x: float | None, value: float, time: float | None) -> None:
    series = log.series.get(name)
    if series is None:
        series = log.series[name] = Series()
    if len(series.value) == 0:
        series.over = over
    elif not over and series.over:  # the step of this value has no unit, so its position is unknown
        x = None
    elif over != series.over:
        series.over = MIXED
    series.number.append(log.num_events)
    series.x.append(nan if x is None else x)
    series.value.append(value)
    series.time.append(nan if time is None else time)
    log.num_values += 1


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        try:
            value = decode(value)
        except StoreDamagedError:
            return None
        value = value.item() if hasattr(value, "item") else value
    try:
        return float(value) if is_number(value) else None
    except OverflowError:
        return None
