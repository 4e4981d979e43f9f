"""Converts table columns, with one value for each run, to NumPy arrays."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.arguments import is_number
from trainmaster.store.run_table import MISSING, Column

Array = NDArray[Any]
Floats = NDArray[np.float64]
_EXACT = 2**53
"""Floats represent all integers up to this value exactly."""
_MISSING = type(MISSING)


def array_of(column: Column) -> Array:
    """Return the values of a config key as an array of integers, floats, bools or objects.

    A missing value is NaN in a column of floats and None in a column of objects. Integers stay exact, so a column
    with missing values and an integer that a float cannot represent becomes a column of objects.

    >>> array_of([1, 2]).dtype.name, array_of([1, 0.5]).dtype.name, array_of([1, "a"]).dtype.name
    ('int64', 'float64', 'object')
    """
    kinds = {*map(type, column)}
    if kinds == {float}:
        return np.array(column, dtype=np.float64)
    if kinds == {bool}:
        return np.array(column, dtype=np.bool_)
    if kinds == {int}:
        try:
            return np.array(column, dtype=np.int64)
        except OverflowError:
            pass
    elif kinds & {int, float} and kinds <= {int, float, _MISSING} and all(abs(each) <= _EXACT for each in column if type(each) is int):
        return np.array([math.nan if each is MISSING else each for each in column], dtype=np.float64)
    return np.fromiter((None if each is MISSING else each for each in column), dtype=object, count=len(column))


def floats_of(column: Column) -> Floats:
    """Return the values of a metric as floats, with NaN for runs without a value."""
    kinds = {*map(type, column)}
    if kinds <= {float}:
        return np.array(column, dtype=np.float64)
    return np.array([_float(each) for each in column], dtype=np.float64)


def _float(value: Any) -> float:
    try:
        return float(value) if is_number(value) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_numeric(values: Array) -> bool:
    """Return whether a column consists of numbers. Bools are categories, not numbers."""
    return values.dtype.kind in "if"


def exact_text(value: Any) -> str:
    """Return a config value as text. Different values have different texts: `1`, `1.0`, `true` and `"1"` are all distinct.

    >>> exact_text("a"), exact_text(True), exact_text([1, 2.0]), exact_text(MISSING)
    ('"a"', 'true', '[1, 2.0]', '')
    """
    return "" if value is MISSING else json.dumps(value, default=str, sort_keys=True)


def distinct(column: Column) -> list[Any]:
    """Return the distinct values of a column, sorted: first numbers, then other values. Missing values are left out."""
    found = {exact_text(value): value for value in column if value is not MISSING}
    return sorted(found.values(), key=lambda value: (0, value, "") if is_number(value) and value == value else (1, 0, exact_text(value)))
