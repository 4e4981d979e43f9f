"""What a manager prints: one line now and then, readable in a terminal, a log file and a notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


class Display:
    """Lines about the work; silent unless `is_verbose`."""

    def __init__(self, is_verbose: bool, interval: int) -> None:
        self._is_verbose, self._interval = is_verbose, interval

    def say(self, text: str) -> None:
        if self._is_verbose:
            shown = "".join(
                each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
            )  # names may hold escape sequences
            with contextlib.suppress(
                OSError, ValueError
            ):  # nobody listens any more, or the disk of the log is full: no reason to stop training
                print(shown, flush=True)

    def epoch(self, key: str, epoch: int, num_epochs: int, seconds: float, preview: Mapping[str, Any]) -> None:
        if epoch % self._interval == 0 or epoch == num_epochs:
            numbers = [
                f"{name} {value:.4g}" for name, value in preview.items() if isinstance(value, int | float) and not isinstance(value, bool)
            ]
            self.say("  ".join([f"{key}  epoch {epoch} of {num_epochs}", *([f"{seconds:.2f} s"] if seconds else []), *numbers[:6]]))
