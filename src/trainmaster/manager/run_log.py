"""The log of a run: the text that was printed about it, or by it in a worker; bounded, and no reason to stop training."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

from trainmaster.config.secrets import MaskedStream
from trainmaster.errors import StoreError
from trainmaster.store import Attempt
from trainmaster.store.files import Appender

MAX_SIZE = 16 * 2**20


class RunLog:
    """Appends text to the log of an attempt, without its secrets, up to `MAX_SIZE` bytes; made with the first text."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._appender: Appender | None = None
        self._stream = MaskedStream(attempt.mask)
        self._left = MAX_SIZE
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._append(self._stream.rest())
            self._is_closed = True
            if self._appender is not None:
                self._appender.close()

    def write(self, text: str) -> None:
        with self._lock:
            self._append(self._stream.take(text))

    def _append(self, text: str) -> None:
        with contextlib.suppress(StoreError):
            if not text or self._is_closed or self._left <= 0:
                return
            if self._appender is None:
                self._appender = self._attempt.open_log()
            data = text.encode(errors="backslashreplace")
            is_last = len(data) > self._left
            self._appender.write(data[: self._left] + (b"\n... the log ends here: it is full\n" if is_last else b""))
            self._left -= len(data)
