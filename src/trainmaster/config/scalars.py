"""Text, numbers and booleans as fields take them: what would lose something is refused."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, NoReturn

from pydantic_core import PydanticCustomError

from trainmaster.config.document import floating
from trainmaster.config.numerals import WrittenFloat, WrittenInt
from trainmaster.config.plain import MAX_DIGITS, plain_scalar, wrong_scalar

_WHOLE = re.compile(rf"\s*[-+]?[0-9]{{1,{MAX_DIGITS}}}\s*")
_NUMBER = re.compile(r"\s*[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\s*")
_SPECIAL = re.compile(r"\s*[-+]?\.?(inf|nan)\s*")
_TRUE = {"true", "t", "1", "yes", "y", "on"}
_FALSE = {"false", "f", "0", "no", "n", "off"}


def wanted(what: str) -> NoReturn:
    raise PydanticCustomError("wanted", "{what}", {"what": what})


def whole(value: Any) -> int:
    """An int: also from `3.0`, `"3"` and NumPy's; not from `1.999`, not from True."""
    if isinstance(value, WrittenFloat) and math.isfinite(value):
        exact = Decimal(value.text)  # 1e23 is not the float that is nearest to it
        value = int(exact) if exact == exact.to_integral_value() else value
    if type(value) is not int:
        value = _scalar(value, "a whole number")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        elif isinstance(value, float):
            wanted("a whole number; this one would lose its fraction" if math.isfinite(value) else "a whole number")
        elif isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
    if type(value) is not int:
        wanted("a whole number")
    if wrong_scalar(value):
        wanted(f"a whole number of at most {MAX_DIGITS:,} digits")
    return value


def number(value: Any) -> float:
    """A float: also from `3`, `"1e-3"` and NumPy's; not from an int that a float cannot hold exactly, not from True."""
    if type(value) is float:
        return value
    value = _scalar(value, "a number")
    if isinstance(value, str):
        return _number_in(value)
    if type(value) is int:
        try:
            exact = float(value)
        except OverflowError:
            wanted("a number within the range of a float")
        if exact != value:
            wanted("a number that a float holds exactly")
        return exact
    if type(value) is not float:
        wanted("a number")
    return value


def _number_in(text: str) -> float:
    if _SPECIAL.fullmatch(text.lower()):
        return float(text.lower().replace(".", ""))
    if not _NUMBER.fullmatch(text):
        wanted("a number")
    return floating(text, lambda _: wanted("a number within the range of a float"))


def boolean(value: Any) -> bool:
    """A bool: also from 1, 0, and true/t/1/yes/y/on, false/f/0/no/n/off in any case."""
    if type(value) is bool:
        return value
    value = _scalar(value, "true or false")
    if type(value) is bool:  # NumPy's
        return value
    text = value.strip().lower() if isinstance(value, str) else str(value) if type(value) is int else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    wanted("true or false")


def text(value: Any) -> str:
    """A str: also from a number or a path; not from a boolean."""
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.text
    if type(value) is not str:
        value = _scalar(value, "text")
        if isinstance(value, bool) or value is None or wrong_scalar(value):
            wanted("text")
    if isinstance(value, str) and wrong_scalar(value):
        wanted("text of valid Unicode")
    return str(value)


def _scalar(value: Any, what: str) -> Any:
    try:
        return plain_scalar(value)
    except TypeError:
        wanted(what)
