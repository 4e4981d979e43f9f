"""What is printed in a worker: it goes to the log of the run at hand, so that it does not garble the driver's view."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PATIENCE = 5.0


class Printed:
    """While the block runs, stdout and stderr of this process, and of its children, go to `keep`; where that returns False, to stderr."""

    def __init__(self, keep: Callable[[str], bool]) -> None:
        self._keep = keep
        self._mark = b"\0" + secrets.token_hex(16).encode() + b"\n"
        self._has_come = threading.Event()

    def __enter__(self) -> Self:
        read, write = os.pipe()
        self._before = os.dup(1), os.dup(2)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        self._thread = threading.Thread(target=self._pump, args=(read,), name="trainmaster-printed", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        _flush()
        for fd, number in zip(self._before, (1, 2), strict=True):
            os.dup2(fd, number)
        self._thread.join(_PATIENCE)  # a child may still hold the other end

    def flush(self) -> None:
        """Have everything printed so far kept."""
        _flush()
        self._has_come.clear()
        with contextlib.suppress(OSError):
            os.write(1, self._mark)
            self._has_come.wait(_PATIENCE)

    def _pump(self, read: int) -> None:
        waiting = b""
        while data := os.read(read, 65536):
            *whole, waiting = (waiting + data).split(self._mark)
            for part in whole:
                self._take(part)
                self._has_come.set()
            if not any(waiting.endswith(self._mark[:size]) for size in range(1, len(self._mark))):
                self._take(waiting)
                waiting = b""
        self._take(waiting)
        os.close(read)

    def _take(self, data: bytes) -> None:
        if data and not self._keep(data.decode(errors="backslashreplace")):
            with contextlib.suppress(OSError):
                os.write(self._before[1], data)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
