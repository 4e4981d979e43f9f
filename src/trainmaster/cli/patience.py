"""Telling people that something takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

_FIRST = 1.5
_NEXT = 15.0


def told(keys: list[str]) -> Iterator[str]:
    """Go through keys whose runs are read one by one; after a while, say on stderr how far it is."""
    due = time.monotonic() + _FIRST
    for number, key in enumerate(keys):
        if number % 50 == 0 and time.monotonic() > due:
            print(f"reading the records of {len(keys):,} runs: {100 * number // len(keys)} %", file=sys.stderr)
            due = time.monotonic() + _NEXT
        yield key
