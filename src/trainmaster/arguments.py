"""Argument checks that many functions share, so that their error messages are consistent."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from trainmaster.errors import SettingError, did_you_mean, shown


def is_int(value: object) -> bool:
    """Return whether a value is an integer and not a bool. Where a number is expected, a bool is almost always a mistake."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float, including NaN and infinity, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_int(name: str, value: Any, *, min: int, hint: str | None = None) -> None:
    """Raise a `SettingError` unless `value` is an integer of at least `min`.

    >>> check_int("every", 0, min=1, hint="NaNGuard(every=10)")
    Traceback (most recent call last):
    trainmaster.errors.SettingError: `every` must be a whole number of at least 1, not 0 (int)
      try     NaNGuard(every=10)
    """
    if not is_int(value) or value < min:
        raise SettingError(f"`{name}` must be a whole number of at least {min}, not {shown(value)}", hint=hint)


def check_number(
    name: str,
    value: Any,
    *,
    min: float | None = None,
    above: float | None = None,
    below: float | None = None,
    hint: str | None = None,
) -> None:
    """Raise a `SettingError` unless `value` is a finite number within the limits.

    >>> check_number("lease_time", 0, above=0)
    Traceback (most recent call last):
    trainmaster.errors.SettingError: `lease_time` must be a number above 0, not 0 (int)
    """
    is_within = is_number(value) and math.isfinite(value) and (min is None or value >= min) and (above is None or value > above)
    if is_within and (below is None or value < below):
        return
    limits = {"of at least": min, "above": above, "below": below}
    text = " and ".join(f"{limit} {number:g}" for limit, number in limits.items() if number is not None)
    raise SettingError(f"`{name}` must be a number {text}, not {shown(value)}", hint=hint)


def check_choice(name: str, value: Any, choices: Collection[str], *, hint: str) -> None:
    """Raise a `SettingError` unless `value` is one of the allowed strings.

    >>> check_choice("policy", "skp", ("stop", "skip"), hint='NaNGuard("stop")')
    Traceback (most recent call last):
    trainmaster.errors.SettingError: `policy` must be "stop" or "skip", not 'skp' (str)
      try     did you mean `skip`?
    """
    if not isinstance(value, str) or value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise SettingError(
            f"`{name}` must be {', '.join(others)} or {last}, not {shown(value)}", hint=did_you_mean(str(value), choices) or hint
        )
