"""What a manager prints: one line now and then, readable in a terminal, a log file and a notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from trainmaster.manager.overview import number

_MAX_NUMBERS = 6


class Display:
    """Lines about the work; silent unless `is_verbose`."""

    def __init__(self, is_verbose: bool, interval: int) -> None:
        self._is_verbose, self._interval = is_verbose, interval

    def say(self, text: str) -> None:
        """Print a line, with what is not printable in it escaped: names may hold anything."""
        if self._is_verbose:
            shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
            # Nobody listens any more, or the disk of the log is full: no reason to stop training.
            with contextlib.suppress(OSError, ValueError):
                print(shown, flush=True)

    def epoch(self, key: str, epoch: int, num_epochs: int, seconds: float, preview: Mapping[str, Any]) -> None:
        """Tell of an epoch, if it is its turn."""
        if self._is_verbose and (epoch % self._interval == 0 or epoch == num_epochs):
            found = [(name, number(value)) for name, value in preview.items()]
            numbers = [f"{name} {_short(value)}" for name, value in found if value is not None]
            self.say(
                "  ".join([f"{key}  epoch {epoch} of {num_epochs}", *([f"{seconds:.2f} s"] if seconds else []), *numbers[:_MAX_NUMBERS]])
            )


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
