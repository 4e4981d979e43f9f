"""What a manager prints: one line now and then, readable in a terminal, a log file and a notebook; and the log of each run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from trainmaster.manager.overview import number
from trainmaster.manager.run_log import RunLog
from trainmaster.store import Attempt
from trainmaster.store.printable import printable

_MAX_NUMBERS = 6


class Display:
    """Lines about the work; printed if `is_verbose`, and kept in the log of the run at hand."""

    def __init__(self, is_verbose: bool, interval: int) -> None:
        self.is_verbose, self._interval = is_verbose, interval
        self._log: RunLog | None = None

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to draw bars on."""
        return self.is_verbose and sys.stdout is not None and sys.stdout.isatty()

    @contextlib.contextmanager
    def logging(self, attempt: Attempt, flush: Callable[[], None]) -> Iterator[None]:
        """Keep all lines in the log of an attempt, too; `flush` brings what is on its way."""
        with RunLog(attempt) as self._log:
            try:
                yield
            finally:
                flush()
                self._log = None

    def say(self, text: str) -> None:
        """Print a line, with what is not printable in it escaped: names may hold anything."""
        self._print(text, sys.stdout)

    def warn(self, text: str) -> None:
        """Print a line where it is seen also when the output goes elsewhere."""
        self._print(text, sys.stderr)

    def keep(self, text: str) -> None:
        """Keep a line in the log, without printing it."""
        self.log(printable(text) + "\n")

    def log(self, text: str) -> bool:
        """Keep a text in the log, without printing it; False if there is no run at hand."""
        log = self._log
        if log is not None:
            log.write(text)
        return log is not None

    def _print(self, text: str, stream: TextIO) -> None:
        self.log(printable(text) + "\n")
        if self.is_verbose:
            # Nobody listens any more, or the disk of the log is full: no reason to stop training.
            try:
                print(printable(text), file=stream, flush=True)
            except BrokenPipeError:  # what the user's code prints is not to fail either
                with contextlib.suppress(OSError, ValueError):
                    null = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(null, stream.fileno())
                    os.close(null)
            except (OSError, ValueError):
                pass

    def epoch(self, key: str, epoch: int, num_epochs: int | None, seconds: float, preview: Mapping[str, Any]) -> None:
        """Tell of an epoch, if it is its turn; where bars are drawn, they tell."""
        if epoch % self._interval == 0 or epoch == num_epochs:
            # The mean over batches is hardly ever another number than that over samples, which is told.
            found = [(name, number(value)) for name, value in preview.items() if not name.endswith("/loss_per_batch")]
            numbers = [f"{name} {_short(value)}" for name, value in found if value is not None]
            of = f" of {num_epochs}" if num_epochs is not None else ""
            self.say("  ".join([f"{key}  epoch {epoch}{of}", *([f"{seconds:.2f} s"] if seconds else []), *numbers[:_MAX_NUMBERS]]))


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "epoch"), counted(3, "epoch")
    ('1 epoch', '3 epochs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _short(value: float) -> str:
    try:
        return f"{value:.4g}"
    except OverflowError:  # an integer that no float can hold
        return f"{len(str(value))} digits"
