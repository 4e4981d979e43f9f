"""Writes strict ASCII JSON for other programs.

JSON has no NaN and no infinities, so they become the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmaster.cli.formatting import format_utc

if TYPE_CHECKING:
    from trainmaster.store.summary import Summary


def print_json(value: Any) -> None:
    print(json.dumps(to_json(value), indent=1, allow_nan=False))


def to_json(value: Any) -> Any:
    """Convert a value to types that JSON supports.

    >>> to_json({"loss": float("nan"), "sizes": (1, 2)})
    {'loss': 'nan', 'sizes': [1, 2]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each) for each in value]
    return str(value)


def run_to_json(run: Summary) -> dict[str, Any]:
    """Return a run as a dict for `ls --json` and `show --json`, with its times in UTC."""
    return {**asdict(run), "changed": format_utc(run.changed), "progressed": format_utc(run.progressed)}
