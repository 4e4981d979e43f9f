"""Converts text, numbers and booleans to the types of fields. A conversion that would lose information is an error."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, NoReturn

from pydantic_core import PydanticCustomError

from trainmaster.config.numerals import NumeralFloat, NumeralInt, parse_float
from trainmaster.config.to_plain import MAX_DIGITS, scalar_problem, scalar_to_plain

_WHOLE = re.compile(rf"\s*[-+]?[0-9]{{1,{MAX_DIGITS}}}\s*")
_NUMBER = re.compile(r"\s*[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\s*")
_SPECIAL = re.compile(r"\s*[-+]?\.?(inf|nan)\s*")
_TRUE = {"true", "t", "1", "yes", "y", "on"}
_FALSE = {"false", "f", "0", "no", "n", "off"}


def refuse(expected: str) -> NoReturn:
    """Raise a validation error. `expected` describes what the field accepts."""
    raise PydanticCustomError("expected", "{expected}", {"expected": expected})


def to_int(value: Any) -> int:
    """Convert a value to int. This also accepts `3.0`, `"3"` and NumPy scalars, but not `1.999` or True."""
    if isinstance(value, NumeralFloat) and math.isfinite(value):
        exact = Decimal(value.text)  # exact: the float nearest to 1e23 is a different integer
        value = int(exact) if exact == exact.to_integral_value() else value
    if type(value) is not int:
        value = _scalar(value, "a whole number")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        elif isinstance(value, float):
            refuse("a whole number; the fraction would be lost" if math.isfinite(value) else "a whole number")
        elif isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
    if type(value) is not int:
        refuse("a whole number")
    if scalar_problem(value):
        refuse(f"a whole number of at most {MAX_DIGITS:,} digits")
    return value


def to_float(value: Any) -> float:
    """Convert a value to float.

    This also accepts `3`, `"1e-3"` and NumPy scalars, but neither True nor an int that a float cannot represent exactly.
    """
    if type(value) is float:
        return value
    value = _scalar(value, "a number")
    if isinstance(value, str):
        return _number_in(value)
    if type(value) is int:
        try:
            exact = float(value)
        except OverflowError:
            refuse("a number within the range of a float")
        if exact != value:
            refuse("a number that a float holds exactly")
        return exact
    if type(value) is not float:
        refuse("a number")
    return value


def _number_in(text: str) -> float:
    if _SPECIAL.fullmatch(text.lower()):
        return float(text.lower().replace(".", ""))
    if not _NUMBER.fullmatch(text):
        refuse("a number")
    try:
        return parse_float(text)
    except ValueError:
        refuse("a number within the range of a float")


def to_bool(value: Any) -> bool:
    """Convert a value to bool.

    This also accepts 1, 0, and true/t/1/yes/y/on or false/f/0/no/n/off in upper or lower case.
    """
    if type(value) is bool:
        return value
    value = _scalar(value, "true or false")
    if type(value) is bool:  # it was a NumPy bool
        return value
    text = value.strip().lower() if isinstance(value, str) else str(value) if type(value) is int else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    refuse("true or false")


def to_text(value: Any) -> str:
    """Convert a value to str. This also accepts numbers and paths, but not booleans."""
    if isinstance(value, NumeralInt | NumeralFloat):
        return value.text
    if type(value) is not str:
        value = _scalar(value, "text")
        if isinstance(value, bool) or value is None or scalar_problem(value):
            refuse("text")
    if isinstance(value, str) and scalar_problem(value):
        refuse("text of valid Unicode")
    return str(value)


def _scalar(value: Any, expected: str) -> Any:
    try:
        return scalar_to_plain(value)
    except TypeError:
        refuse(expected)
