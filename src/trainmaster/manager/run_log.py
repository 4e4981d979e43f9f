"""`RunLog`: the log of an attempt. It contains the messages and warnings about the run and, in a worker, everything that is printed."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType
from typing import Self

from trainmaster.config.masking import MaskedStream
from trainmaster.errors import StoreError
from trainmaster.store import Attempt
from trainmaster.store.files import Appender

MAX_SIZE = 16 * 2**20


class RunLog:
    """Appends text to the log of an attempt, up to `MAX_SIZE` bytes. Secrets in the text are masked.

    An error while writing does not stop training.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._appender: Appender | None = None
        self._stream = MaskedStream(attempt.mask)
        self._left = MAX_SIZE
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._append(self._stream.rest())
            self._is_closed = True
            if self._appender is not None:
                self._appender.close()

    def write(self, text: str) -> None:
        if os.getpid() == self._pid:  # in a fork, the lock may be held by a thread that does not exist there
            with self._lock:
                self._append(self._stream.take(text))

    def _append(self, text: str) -> None:
        with contextlib.suppress(StoreError):
            if not text or self._is_closed or self._left <= 0:
                return
            if self._appender is None:
                self._appender = self._attempt.open_log()
            data = text.encode(errors="backslashreplace")
            is_full = len(data) > self._left
            self._appender.write(data[: self._left] + (b"\n... the log is full and ends here\n" if is_full else b""))
            self._left -= len(data)
