"""Prints progress messages for commands that read many runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

_FIRST_MESSAGE = 1.5
_NEXT_MESSAGE = 15.0


def report_progress(keys: list[str]) -> Iterator[str]:
    """Yield the keys, and print the progress to stderr if reading the runs takes a long time."""
    due = time.monotonic() + _FIRST_MESSAGE
    for number, key in enumerate(keys):
        if number % 50 == 0 and time.monotonic() > due:
            print(f"reading {len(keys):,} runs: {100 * number // len(keys)} %", file=sys.stderr)
            due = time.monotonic() + _NEXT_MESSAGE
        yield key
