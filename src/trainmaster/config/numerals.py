"""Parses numbers in config files without loss, and keeps their original text for fields of type `str`."""

from __future__ import annotations

import math
import re

from trainmaster.config.to_plain import MAX_DIGITS, scalar_problem


class NumeralInt(int):
    """An integer whose text in a file differs from its `repr`, such as `0x1F`."""

    text: str


class NumeralFloat(float):
    """A float whose text in a file differs from its `repr`, such as `1.10`."""

    text: str


def with_numeral(value: int | float, text: str) -> int | float:
    """Return `value` with the text that it was parsed from, so that `version: 1.10` does not become `"1.1"` in a field of type `str`."""
    if str(value) == text:
        return value
    number: NumeralInt | NumeralFloat = NumeralInt(value) if isinstance(value, int) else NumeralFloat(value)
    number.text = text
    return number


def parse_int(text: str) -> int:
    """Parse an integer. Raise `ValueError` if it has more digits than Python can print."""
    num_digits = len(text.lstrip("+-"))
    if num_digits > MAX_DIGITS:
        raise ValueError(f"an integer of {num_digits:,} digits; at most {MAX_DIGITS:,}")
    value = int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if scalar_problem(value):  # 4,300 hexadecimal digits are more than 4,300 decimal digits
        raise ValueError(scalar_problem(value))
    return value


def parse_float(text: str) -> float:
    """Parse a float. Raise `ValueError` if it would overflow to infinity or underflow to zero."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the range of a float")
    if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise ValueError(f"{text[:40]} is too small for a float")
    return value
