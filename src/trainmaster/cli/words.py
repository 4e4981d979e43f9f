"""Numbers, times and sizes in words."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any


def short(value: Any) -> str:
    """A value in a few characters.

    >>> short(0.123456), short(3), short(True), short("a")
    ('0.1235', '3', 'true', 'a')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:190]} ..."


def exact(value: Any) -> str:
    """A value of a config in full, as it can be written in a condition."""
    return str(value).lower() if isinstance(value, bool) or value is None else value if isinstance(value, str) else repr(value)


def duration(seconds: float) -> str:
    """How long something takes.

    >>> duration(3), duration(150), duration(7300), duration(200_000)
    ('3 s', '2 min', '2 h', '2 d')
    """
    seconds = max(0.0, seconds)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} d"


def age(moment: float | None) -> str:
    """How long ago a moment was; empty if it is not known."""
    return "" if moment is None else duration(time.time() - moment)


def utc(moment: float | None) -> str | None:
    """A moment for other programs."""
    try:
        return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def size(num_bytes: float) -> str:
    """
    >>> size(512), size(1536), size(3 * 2**30)
    ('512 B', '1.5 kB', '3.0 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
