"""The metric history of a run, read from its event logs.

If a metric has a very large number of points, only evenly spaced points and the last one are kept. Peaks between two
kept points are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from trainmaster.arguments import is_number
from trainmaster.errors import StoreDamagedError
from trainmaster.store.attempt_records import EVENTS
from trainmaster.store.events import MAX_LINE, event_of, is_whole_line, seed_of
from trainmaster.store.run import Run

MAX_METRICS = 200
MAX_POINTS = 4000
"""The maximum number of points that are kept for each metric."""
AXES = ("epoch", "update", "batch", "sample")
"""The possible x axes of a metric."""
_TAG = b'"tag":"'

Point = tuple[float, int | float]
"""An `(x, value)` pair, where `x` is a step or an epoch."""


@dataclass(frozen=True)
class History:
    points: dict[str, list[Point]]
    """The points of each metric, in order."""
    is_sampled: bool
    """True if some points were left out."""
    over: dict[str, str] = field(default_factory=dict)
    """The x axis of each metric: "epoch", "update", "batch" or "sample". Metrics whose axis was not logged are missing."""


def history(run: Run) -> History:
    """Return the points of all metrics of a run, including those logged before the run was resumed."""
    points: dict[str, list[Point]] = {}
    over: dict[str, str] = {}
    is_sampled = False
    for link in reversed(run.chain()):
        path = run.path(link.attempt, EVENTS)
        try:
            with run.files.open(path) as file:
                samples = _sample(file, link.num_events)
        except FileNotFoundError:
            continue
        is_sampled |= any(each.step > 1 for each in samples)
        seed = seed_of(path)
        for number, line in sorted({row for each in samples for row in (*each.rows, each.last)}):
            if not is_whole_line(line, number, seed):
                break
            for name, point, axis in _points(line, path):
                if name in points or len(points) < MAX_METRICS:
                    points.setdefault(name, []).append(point)
                    if axis:
                        over[name] = axis
    return History(points, is_sampled, over)


class _Sample:
    """A sample of one metric's log lines: every `step`-th line, and the last line."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.step = 1
        self.last = (0, b"")
        self._num_lines = 0

    def add(self, number: int, line: bytes) -> None:
        self.last = (number, line)
        if self._num_lines % self.step == 0:
            self.rows.append(self.last)
            if len(self.rows) >= MAX_POINTS:
                self.rows = self.rows[::2]
                self.step *= 2
        self._num_lines += 1


def _sample(file: BinaryIO, num_events: int | None) -> list[_Sample]:
    """Sample the lines of a log for each metric.

    Lines are sampled before they are parsed, so reading a log of a million lines is fast.
    """
    samples: dict[bytes, _Sample] = {}
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE), b"")):
        if number == num_events or not line.endswith(b"}\n"):  # an incomplete line
            break
        start = line.find(_TAG)
        tag = line[start : line.find(b'"', start + len(_TAG))] if start >= 0 else b""
        sample = samples.get(tag)
        if sample is None:
            if len(samples) >= MAX_METRICS:
                continue
            sample = samples[tag] = _Sample()
        sample.add(number, line)
    return list(samples.values())


def _points(line: bytes, path: str) -> Iterator[tuple[str, Point, str]]:
    """Yield the name, point and axis of each number in an event. Loops log `tag`, `value` and `over`; managers log a dict named `eval`."""
    try:
        event = event_of(line, path)
    except StoreDamagedError:  # not written by trainmaster, although its checksum is correct
        return
    step: Any = event.get("step", event.get("epoch"))
    x = float(step) if _is_plottable(step) else 0.0
    if isinstance(event.get("tag"), str) and _is_plottable(event.get("value")):
        axis = event.get("over")
        yield event["tag"], (x, event["value"]), axis if axis in AXES else ""
    elif isinstance(event.get("eval"), dict):
        yield from ((str(name), (x, value), "epoch") for name, value in event["eval"].items() if _is_plottable(value))


def _is_plottable(value: Any) -> bool:
    return is_number(value) and not abs(value) >= 1e300
