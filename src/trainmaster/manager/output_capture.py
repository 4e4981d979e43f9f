"""`OutputCapture`: writes the output of a worker to the log of its run instead of the terminal."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_TIMEOUT = 5.0


class OutputCapture:
    """While the `with` block runs, stdout and stderr of this process and its children go to `log`.

    If `log` returns False, because there is no current run, the text goes to the original stderr.
    """

    def __init__(self, log: Callable[[str], bool]) -> None:
        self._log = log
        self._marker = b"\0" + secrets.token_hex(16).encode() + b"\n"
        """`flush` writes this marker into the pipe. When the marker is read, all output before it has been logged."""
        self._is_flushed = threading.Event()

    def __enter__(self) -> Self:
        read, write = os.pipe()
        self._before = os.dup(1), os.dup(2)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        self._thread = threading.Thread(target=self._pump, args=(read,), name="trainmaster-output", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        _flush_streams()
        for fd, number in zip(self._before, (1, 2), strict=True):
            os.dup2(fd, number)
        self._thread.join(_TIMEOUT)  # a child process may still have the other end of the pipe open

    def flush(self) -> None:
        """Wait until everything that was printed so far is logged."""
        _flush_streams()
        self._is_flushed.clear()
        with contextlib.suppress(OSError):
            os.write(1, self._marker)
            self._is_flushed.wait(_TIMEOUT)

    def _pump(self, read: int) -> None:
        rest = b""
        while data := os.read(read, 65536):
            *parts, rest = (rest + data).split(self._marker)
            for part in parts:
                self._write(part)
                self._is_flushed.set()
            if not any(rest.endswith(self._marker[:size]) for size in range(1, len(self._marker))):
                self._write(rest)
                rest = b""
        self._write(rest)
        os.close(read)

    def _write(self, data: bytes) -> None:
        if data and not self._log(data.decode(errors="backslashreplace")):
            with contextlib.suppress(OSError):
                os.write(self._before[1], data)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
