"""JSON for other programs: strict, in ASCII. NaN and the infinities, which JSON does not have, are the texts "nan", "inf" and "-inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmaster.cli.words import utc

if TYPE_CHECKING:
    from trainmaster.store.summary import Summary


def print_json(value: Any) -> None:
    print(json.dumps(as_json(value), indent=1, allow_nan=False))


def as_json(value: Any) -> Any:
    """`value` with nothing in it that JSON does not have.

    >>> as_json({"loss": float("nan"), "sizes": (1, 2)})
    {'loss': 'nan', 'sizes': [1, 2]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(each) for each in value]
    return str(value)


def run_as_json(run: Summary) -> dict[str, Any]:
    """A run as `ls` and `show` print it, with its times as texts."""
    return {**asdict(run), "changed": utc(run.changed), "progressed": utc(run.progressed)}
