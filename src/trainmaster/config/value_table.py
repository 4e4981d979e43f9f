"""Formats a config as a table of values and origins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainmaster.text import html_table

Row = tuple[str, Any, str]

IN_CODE = "set in code"
"""The origin of a value that the program set."""
DEFAULT = "default"
"""The origin of a value that comes from free-form defaults. The default of a config class has the origin `default of CLASS`."""


def run_origin(key: str) -> str:
    """Return the origin of a value that was read from the stored config of a run."""
    return f"run {key}"


def table(rows: Iterable[Row]) -> str:
    """Return a table with three aligned columns: key, value and origin."""
    shown = [(key, short_repr(value), origin) for key, value, origin in rows]
    widths = [max((len(row[column]) for row in shown), default=0) for column in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for key, value, origin in shown)


def table_html(title: str, rows: Iterable[Row]) -> str:
    """Return the table of keys, values and origins as HTML, for notebooks."""
    return html_table(title, ("key", "value", "from"), [(key, short_repr(value), origin) for key, value, origin in rows])


def short_repr(value: Any, limit: int = 60) -> str:
    """Return the `repr` of a value on one line, shortened in the middle if it is long."""
    try:
        text = repr(value).replace("\n", "\\n")
    except Exception:  # a broken `__repr__` must not hide the error message
        return f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 13]} ... {text[-8:]}"
