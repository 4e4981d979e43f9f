"""Event logs. One process writes a log, and any number of processes read it. Each line is a numbered JSON object with a
checksum.

A reader stops at the first incomplete or damaged line. When a writer opens a log, it removes an incomplete last line, which a killed
process may have left.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from trainmaster.errors import CodecError, LeaseLostError, StoreDamagedError
from trainmaster.store.checksummed_json import damaged
from trainmaster.store.codec import decode, encode_plain
from trainmaster.store.files import Appender, Files

MAX_LINE = 16 * 2**20
_ENDING = re.compile(rb',"crc":"([0-9a-f]{8})"}\n\Z')
_ENDING_LENGTH = len(',"crc":"01234567"}\n')
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_RESERVED = ("n", "crc")

RowsByName = dict[str, list[tuple[int | None, Any]]]
"""The (step, value) pairs of each metric or text, in the order in which they were logged."""


class EventLog:
    """The event log at `path`, opened for appending. `count` is the number of events in the log."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._appender: Appender | None = None
        self._pid = os.getpid()
        self.count = 0

    def append(self, event: Mapping[str, Any]) -> None:
        """Append an event, which must not contain arrays or tensors. The event is durable after `sync()`."""
        reserved = [name for name in _RESERVED if name in event]
        if reserved:
            raise ValueError(f"an event cannot have a member `{reserved[0]}`: the log uses that name itself")
        if os.getpid() != self._pid:
            raise LeaseLostError("a forked process cannot write to the event log of its parent", where=self._path)
        tree = encode_plain(dict(event))
        if self._appender is None:
            self._appender = self._open()
        line = event_line(self.count, tree, seed_of(self._path))
        if len(line) > MAX_LINE:
            raise CodecError(
                f"an event has {len(line):,} bytes; the limit is {MAX_LINE:,}",
                hint="events are for numbers; keep arrays in checkpoints",
            )
        self._appender.write(line)
        self.count += 1

    def _open(self) -> Appender:
        mark = self._files.mark(self._path)
        if mark is not None:
            lines = read_lines(self._files, self._path)
            size, self.count = sum(map(len, lines)), len(lines)
            if size < mark[0]:
                self._files.truncate(self._path, size)
        return self._files.append(self._path)

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if self._appender is not None:
            self._appender.sync()

    def close(self) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None


def seed_of(path: str) -> int:
    """Return the initial value for a log's checksums. It depends on the path, so a line copied from another log is not valid."""
    return zlib.crc32(path.encode())


def event_line(number: int, tree: Mapping[str, Any], seed: int = 0) -> bytes:
    """Return one line of a log for an event whose values are already encoded.

    >>> event_line(0, {"epoch": 1, "loss": 0.5})
    b'{"n":0,"epoch":1,"loss":0.5,"crc":"36893d2a"}\\n'
    """
    body = _encode({"n": number, **tree})[:-1].encode()
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body, seed))


def is_whole_line(line: bytes, number: int, seed: int) -> bool:
    """Return whether a line is complete and unchanged, and has the expected number."""
    ending = _ENDING.search(line[-_ENDING_LENGTH:])
    if ending is None or not line.startswith(b'{"n":%d,' % number):
        return False
    return b"%08x" % zlib.crc32(line[:-_ENDING_LENGTH], seed) == ending[1]


def read_lines(files: Files, path: str, count: int | None = None) -> list[bytes]:
    """Return the first `count` lines of a log (by default all complete lines). Raise an error if there are fewer than `count`."""
    try:
        with files.open(path) as file:
            lines = list(_whole_lines(file, count, seed_of(path)))
    except FileNotFoundError:
        lines = []
    if count is not None and len(lines) < count:
        raise damaged(path, f"{count} events were saved in it, and {len(lines)} can be read")
    return lines


def read_events(files: Files, path: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the events in the lines that `read_lines` returns."""
    return [event_of(line, path) for line in read_lines(files, path, count)]


def _whole_lines(file: BinaryIO, count: int | None, seed: int) -> Iterator[bytes]:
    for number in itertools.count() if count is None else range(count):
        line = file.readline(MAX_LINE)
        if not is_whole_line(line, number, seed):
            return
        yield line


def event_of(line: bytes, path: str) -> dict[str, Any]:
    try:
        tree = json.loads(line)
        for name in _RESERVED:
            del tree[name]
        event = decode(tree)
        if isinstance(event, dict):
            return event
    except (ValueError, KeyError, TypeError, RecursionError, StoreDamagedError):
        pass
    raise damaged(path, f"this line is not an event: {line[:80]!r}")


def rows_by_name(events: Iterable[Mapping[str, Any]]) -> RowsByName:
    """Return the logged values by name. Loops log a tag with a value or text; managers log a dict named `eval` with several numbers.

    >>> rows_by_name([{"tag": "valid/loss", "value": 0.5, "step": 1}, {"epoch": 2, "eval": {"loss_test": 0.1}}])
    {'valid/loss': [(1, 0.5)], 'loss_test': [(2, 0.1)]}
    """
    rows: RowsByName = {}
    for event in events:
        tag, value = event.get("tag"), event.get("value", event.get("text"))
        if isinstance(tag, str) and isinstance(value, int | float | str):
            rows.setdefault(tag, []).append((event.get("step"), value))
        elif isinstance(event.get("eval"), Mapping):
            for name, number in event["eval"].items():
                rows.setdefault(str(name), []).append((event.get("epoch"), number))
    return rows
