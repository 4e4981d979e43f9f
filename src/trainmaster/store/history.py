"""History: how the numbers of a run went, from its event logs, in time that does not grow with them.

A short log is read whole. Of a long one, lines are looked at here and there, each checked by its own checksum; so curves are right, and
peaks between two looks are not seen.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from trainmaster.errors import StoreDamagedError
from trainmaster.store.events import event_of, seed_of
from trainmaster.store.files import Files
from trainmaster.store.run import EVENTS, Run

MAX_WHOLE = 2 * 2**20
"""Logs of more bytes are looked at here and there."""
MAX_METRICS = 200
_NUM_LOOKS = 1500
_FEW = 60
"""A metric that fewer looks have met is searched for by its name."""
_MAX_SEARCHED = 24
_PER_BLOCK = 4
_BLOCK = 2**20
_MAX_LINE = 2**16
_START = re.compile(rb'\{"n":(\d{1,18}),')
_ENDING = re.compile(rb',"crc":"([0-9a-f]{8})"}\n\Z')
_LENGTH = len(',"crc":"01234567"}\n')

Point = tuple[float, int | float]
"""Step or epoch, and the value there."""
Row = tuple[int, bytes]
"""The number of a line, and the line."""


@dataclass(frozen=True)
class History:
    points: dict[str, list[Point]]
    """By metric, in order."""
    is_sampled: bool
    """True where not every event was read."""


def history(run: Run, metrics: Iterable[str] = ()) -> History:
    """How the metrics of a run went. `metrics` are looked for by name, however seldom they were logged."""
    wanted = [*metrics][:_MAX_SEARCHED]
    points: dict[str, list[Point]] = {}
    is_sampled = False
    for link in reversed(run.chain()):
        path = run.path(link.attempt, EVENTS)
        mark = run.files.mark(path)
        if mark is None:
            continue
        is_long = mark[0] > MAX_WHOLE
        is_sampled |= is_long
        rows = _here_and_there(run.files, path, mark[0], wanted) if is_long else _all(run.files, path)
        for number, line in rows:
            if link.num_events is not None and number >= link.num_events:
                break
            for name, point in _numbers(line, path):
                if name in points or len(points) < MAX_METRICS:
                    points.setdefault(name, []).append(point)
    return History(points, is_sampled)


def _numbers(line: bytes, path: str) -> Iterator[tuple[str, Point]]:
    """The numbers of one event: of a loop's, `tag` and `value`; of a manager's, all in `eval`."""
    try:
        event = event_of(line, path)
    except StoreDamagedError:  # whole, and yet no event: somebody made it
        return
    step: Any = event.get("step", event.get("epoch"))
    at = float(step) if _is_number(step) else 0.0
    if isinstance(event.get("tag"), str) and _is_number(event.get("value")):
        yield event["tag"], (at, event["value"])
    elif isinstance(event.get("eval"), dict):
        yield from ((str(name), (at, value)) for name, value in event["eval"].items() if _is_number(value))


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300) or value != value


def _all(files: Files, path: str) -> Iterator[Row]:
    """Every line up to the first that is not whole."""
    seed = seed_of(path)
    with files.open(path) as file:
        for number, line in enumerate(file):
            if _number_of(line, seed) != number:
                return
            yield number, line


def _here_and_there(files: Files, path: str, size: int, wanted: list[str]) -> list[Row]:
    """Lines from all over a log, in order: at even steps, the last ones, and some of each wanted metric."""
    seed = seed_of(path)
    with files.open(path) as file:
        rows = dict(_numbered(_at_even_steps(file, size), seed))
        rows |= _numbered(_last(file, size), seed)
        common: dict[str, int] = {}
        for line in rows.values():
            for name, _ in _numbers(line, path):
                common[name] = common.get(name, 0) + 1
        patterns = [b'"tag":%b,' % json.dumps(name).encode() for name in wanted if common.get(name, 0) < _FEW]
        rows |= _numbered(_with(file, size, patterns), seed)
    return sorted(rows.items())


def _at_even_steps(file: BinaryIO, size: int) -> Iterator[bytes]:
    for look in range(_NUM_LOOKS):
        file.seek(size * look // _NUM_LOOKS)
        if look:
            file.readline(_MAX_LINE)
        yield file.readline(_MAX_LINE)


def _last(file: BinaryIO, size: int) -> list[bytes]:
    """The last lines: a curve ends where the run does."""
    file.seek(max(0, size - _MAX_LINE))
    return file.read(_MAX_LINE).splitlines(keepends=True)[1:]


def _with(file: BinaryIO, size: int, patterns: list[bytes]) -> Iterator[bytes]:
    """Some lines of each block that have one of the patterns."""
    for place in range(0, size if patterns else 0, _BLOCK):
        file.seek(place)
        block = file.read(_BLOCK)
        for pattern in patterns:
            start = 0
            for _ in range(_PER_BLOCK):
                at = block.find(pattern, start)
                end = block.find(b"\n", at) + 1
                if at < 0 or end == 0:
                    break
                yield block[block.rfind(b"\n", 0, at) + 1 : end]
                start = max(end, start + len(block) // _PER_BLOCK)


def _numbered(lines: Iterable[bytes], seed: int) -> Iterator[Row]:
    """Those lines that are whole."""
    return ((number, line) for line in lines if (number := _number_of(line, seed)) is not None)


def _number_of(line: bytes, seed: int) -> int | None:
    """The number of a line that is what was written; else None."""
    start, ending = _START.match(line), _ENDING.search(line[-_LENGTH:])
    is_whole = start is not None and ending is not None and b"%08x" % zlib.crc32(line[:-_LENGTH], seed) == ending[1]
    return int(start[1]) if start is not None and is_whole else None
