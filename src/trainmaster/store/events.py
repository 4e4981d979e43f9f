"""Event logs: one JSON object a line, numbered, each with a checksum of its own, written by one process and read by any.

A reader stops at the first line that is not whole. A writer that opens a log cuts off what a kill left of the last line.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from trainmaster.errors import CodecError, LeaseLostError, StoreDamagedError
from trainmaster.store.codec import decode, encode_plain
from trainmaster.store.files import Appender, Files
from trainmaster.store.record import damaged

_ENDING = re.compile(rb',"crc":"([0-9a-f]{8})"}\n\Z')
_LENGTH = len(',"crc":"01234567"}\n')
_MAX_LINE = 16 * 2**20
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_OWN = ("n", "crc")


class EventLog:
    """The log at `path`, to be appended to; `count` events are in it."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._appender: Appender | None = None
        self._pid = os.getpid()
        self.count = 0

    def append(self, event: Mapping[str, Any]) -> None:
        """Add an event of plain values; it is durable after `sync()`."""
        taken = [name for name in _OWN if name in event]
        if taken:
            raise ValueError(f"`{taken[0]}` is the log's own: give the value another name")
        if os.getpid() != self._pid:
            raise LeaseLostError("a fork cannot write to the event log of its parent", where=self._path)
        tree = encode_plain(dict(event))
        if self._appender is None:
            self._appender = self._opened()
        line = event_line(self.count, tree, seed_of(self._path))
        if len(line) > _MAX_LINE:
            raise CodecError(
                f"an event has {len(line):,} bytes, and {_MAX_LINE:,} can be stored",
                hint="events are for numbers; keep arrays in checkpoints",
            )
        self._appender.write(line)
        self.count += 1

    def _opened(self) -> Appender:
        mark = self._files.mark(self._path)
        if mark is not None:
            lines = read_lines(self._files, self._path)
            size, self.count = sum(map(len, lines)), len(lines)
            if size < mark[0]:
                self._files.cut(self._path, size)
        return self._files.append(self._path)

    def sync(self) -> None:
        """Make all that was appended durable."""
        if self._appender is not None:
            self._appender.sync()

    def close(self) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None


def seed_of(path: str) -> int:
    """What the checksums of a log start from, so that no line of another log is taken for one of this."""
    return zlib.crc32(path.encode())


def event_line(number: int, tree: Mapping[str, Any], seed: int = 0) -> bytes:
    """One line of a log, from encoded values.

    >>> event_line(0, {"epoch": 1, "loss": 0.5})
    b'{"n":0,"epoch":1,"loss":0.5,"crc":"36893d2a"}\\n'
    """
    body = _encode({"n": number, **tree})[:-1].encode()
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body, seed))


def read_lines(files: Files, path: str, count: int | None = None) -> list[bytes]:
    """The whole lines of a log, or exactly the first `count` of them: fewer than that is damage."""
    try:
        with files.open(path) as file:
            lines = list(_whole_lines(file, count, seed_of(path)))
    except FileNotFoundError:
        lines = []
    if count is not None and len(lines) < count:
        raise damaged(path, f"{count} events were saved in it, and {len(lines)} can be read")
    return lines


def read_events(files: Files, path: str, count: int | None = None) -> list[dict[str, Any]]:
    """The events of a log, as `read_lines`."""
    return [event_of(line, path) for line in read_lines(files, path, count)]


def event_of(line: bytes, path: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
        for name in _OWN:
            del event[name]
        found = decode(event)
        if isinstance(found, dict):
            return found
    except (ValueError, KeyError, TypeError, RecursionError, StoreDamagedError):
        pass
    raise damaged(path, f"this line is no event: {line[:80]!r}")


def _whole_lines(file: BinaryIO, count: int | None, seed: int) -> Iterator[bytes]:
    """The lines of a log up to the first that is damaged, missing or not yet whole."""
    for number in itertools.count():
        line = file.readline(_MAX_LINE) if count is None or number < count else b""
        ending = _ENDING.search(line[-_LENGTH:])
        if ending is None or not line.startswith(b'{"n":%d,' % number) or b"%08x" % zlib.crc32(line[:-_LENGTH], seed) != ending[1]:
            return
        yield line
