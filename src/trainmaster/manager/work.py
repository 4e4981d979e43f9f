"""A piece of a manager's work, and the words for errors in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Work(NamedTuple):
    """A run to be trained, and how far."""

    key: str
    config: Any
    num_epochs: int | None
    """None leaves it to the loop."""


def described(error: BaseException, shown: Callable[[str], str] = str) -> str:
    """The type and text of an error, also of one that cannot say its text; `shown` makes of a text what may be seen of it."""
    try:
        return shown(f"{type(error).__name__}: {error}")[:2000]
    except Exception:  # in the `__str__` of somebody else's error
        return type(error).__name__


def first_line(text: str) -> str:
    return text.partition("\n")[0]
