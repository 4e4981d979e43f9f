"""`Console`: prints a manager's messages and writes them to the log of the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from trainmaster.config.masking import MaskedStream
from trainmaster.errors import StoreError
from trainmaster.manager.overview import number
from trainmaster.store import Attempt
from trainmaster.store.files import Appender
from trainmaster.text import printable, printable_lines

_MAX_NUMBERS = 6


class Console:
    """Appends lines to the log of the current run and, if `is_verbose`, also prints them.

    Unprintable characters are escaped.
    """

    def __init__(self, is_verbose: bool, interval: int) -> None:
        self.is_verbose, self._interval = is_verbose, interval
        self._log: RunLog | None = None
        self._has_live_view = False
        self.has_bars = True

    @property
    def width(self) -> int | None:
        """The width of the terminal in columns, or None if the output is not a terminal."""
        with contextlib.suppress(OSError, ValueError):  # the stream is closed
            if self.is_verbose and sys.stdout is not None and sys.stdout.isatty():
                return shutil.get_terminal_size().columns
        return None

    def hide_bars(self) -> None:
        """Show no progress bars, even on a terminal."""
        self.has_bars = False

    def mute(self) -> None:
        """Print nothing from now on. Lines are still written to the logs of runs."""
        self.is_verbose = False

    @contextlib.contextmanager
    def logging_to(self, attempt: Attempt, flush: Callable[[], None] | None) -> Iterator[None]:
        """While the `with` block runs, also append all lines and warnings to the log of an attempt.

        In a worker, all printed text goes through a pipe to this log. At the end of the block, `flush` waits until the pipe is empty.
        """
        with RunLog(attempt) as self._log:
            try:
                # In a worker, the captured output already contains the warnings.
                with self._logging_warnings() if flush is None else contextlib.nullcontext():
                    yield
            finally:
                if flush is not None:
                    flush()
                self._log = None

    @contextlib.contextmanager
    def _logging_warnings(self) -> Iterator[None]:
        """While the `with` block runs, log the warnings that Python shows. Each text is logged only once."""
        show, seen = warnings.showwarning, set[str]()

        def log_and_show(message: Any, *rest: Any, **more: Any) -> None:
            text = f"warning: {message}\n"
            if text not in seen:
                seen.add(text)
                self.log(printable_lines(text))
            show(message, *rest, **more)

        warnings.showwarning = log_and_show
        try:
            yield
        finally:
            if warnings.showwarning is log_and_show:
                warnings.showwarning = show

    @contextlib.contextmanager
    def below_live_view(self) -> Iterator[None]:
        """While the `with` block runs, write lines about a run only to its log, because a live view shows the runs."""
        self._has_live_view = True
        try:
            yield
        finally:
            self._has_live_view = False

    def print(self, text: str) -> None:
        """Print and log a line."""
        if self._has_live_view and self._log is not None:
            self.log_line(text)
        else:
            self._print(text, sys.stdout)

    def warn(self, text: str) -> None:
        """Print a line to stderr, and log it."""
        self._print(text, sys.stderr)

    def log_line(self, text: str) -> None:
        """Log a line without printing it."""
        self.log(printable(text) + "\n")

    def log(self, text: str) -> bool:
        """Append text to the log of the current run without printing it. Return False if there is no current run."""
        log = self._log
        if log is not None:
            log.write(text)
        return log is not None

    def _print(self, text: str, stream: TextIO) -> None:
        self.log_line(text)
        if self.is_verbose:
            # A closed pipe or a full disk must not stop training.
            try:
                print(printable(text), file=stream, flush=True)
            except BrokenPipeError:  # redirect to /dev/null, so that `print` in the user's code does not fail either
                with contextlib.suppress(OSError, ValueError):
                    null = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(null, stream.fileno())
                    os.close(null)
            except (OSError, ValueError):
                pass

    def print_epoch(self, key: str, epoch: float, num_epochs: int | None, seconds: float, preview: Mapping[str, Any]) -> None:
        """Print the metrics every `interval` epochs, and after the last epoch."""
        if int(epoch) % self._interval == 0 or epoch == num_epochs:
            values = [(name, number(preview[name])) for name in sorted(preview, key=lambda each: not each.endswith("/loss"))]
            numbers = [f"{name} {short_number(value)}" for name, value in values if value is not None]
            of = f" of {num_epochs}" if num_epochs is not None else ""
            parts = [f"{key}  epoch {round(epoch, 3)}{of}", *([f"{seconds:.2f} s"] if seconds else []), *numbers[:_MAX_NUMBERS]]
            self.print("  ".join(parts))


def short_number(value: float) -> str:
    """Format a number with four significant digits. If an integer is too large for a float, return its number of digits.

    >>> short_number(0.123456), short_number(10**400)
    ('0.1235', '401 digits')
    """
    try:
        return f"{value:.4g}"
    except OverflowError:  # an integer too large for a float
        return f"{len(str(value))} digits"


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
        if os.getpid() == self._pid:  # in a forked process, a thread that no longer exists may hold the lock
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
