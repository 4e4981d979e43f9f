"""Formats values, times and errors as short texts."""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trainmaster

if TYPE_CHECKING:
    from trainmaster.store.summary import Summary

_UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
_OWN_FOLDER = os.path.dirname(os.path.abspath(trainmaster.__file__))
_LIBRARY_FOLDERS = tuple(os.path.abspath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def format_short(value: Any) -> str:
    """Format a value for a table.

    >>> format_short(0.123456), format_short(3), format_short(True), format_short("a")
    ('0.1235', '3', 'true', 'a')
    """
    return f"{value:.4g}" if isinstance(value, float) else format_exact(value)


def format_exact(value: Any) -> str:
    """Return a config value in full, the way you would write it in a `--where` filter."""
    return str(value).lower() if isinstance(value, bool) or value is None else value if isinstance(value, str) else repr(value)


def format_duration(seconds: float | None, num_units: int = 2) -> str:
    """Format a duration with at most `num_units` units.

    >>> format_duration(0.43), format_duration(8.2), format_duration(200), format_duration(200_000), format_duration(None)
    ('0.43 s', '8 s', '3 min 20 s', '2 d 7 h', '')
    """
    if seconds is None:
        return ""
    if seconds < 5:
        return f"{max(0.0, seconds):.2g} s"
    parts: list[str] = []
    rest = round(seconds)
    for name, length in _UNITS.items():
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {name}")
    return " ".join(parts[:num_units])


def format_age(moment: float | None) -> str:
    """Return how long ago a point in time was, as text with a single unit, such as hours."""
    return "" if moment is None else format_duration(int(time.time() - moment), num_units=1)


def _format_utc(moment: float | None) -> str | None:
    try:
        return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a damaged record may contain any number
        return None


def run_to_json(run: Summary) -> dict[str, Any]:
    """Return a run as a dict for `ls --json` and `show --json`, with its times in UTC."""
    return {**asdict(run), "changed": _format_utc(run.changed), "progressed": _format_utc(run.progressed)}


def format_user_error(error: BaseException) -> str:
    """Format an error from the user's code: the part of the traceback in the user's files, then the error with its notes."""
    frames = traceback.extract_tb(error.__traceback__)
    others = (_OWN_FOLDER, *_LIBRARY_FOLDERS)
    own = [frame for frame in frames if not os.path.abspath(frame.filename).startswith(others) and not frame.filename.startswith("<")]
    lines = []
    for frame in own or frames[-2:]:
        relative = os.path.relpath(frame.filename)
        lines.append(f"  {frame.filename if relative.startswith('..') else relative}:{frame.lineno}, in {frame.name}")
        lines += [f"    {frame.line}"] if frame.line else []
    return "\n".join([*lines, "".join(traceback.format_exception_only(error)).rstrip("\n")])
