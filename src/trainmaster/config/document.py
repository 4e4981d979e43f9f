"""What was read from a YAML or JSON text, how much of it there may be, and how it is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from trainmaster.config.plain import MAX_DIGITS, wrong_scalar
from trainmaster.errors import ConfigFileError


class Document(NamedTuple):
    """What was read: the tree, with dotted keys as they were written, and by dotted key the place of each value."""

    tree: Any
    name: str
    marks: dict[str, tuple[int, int]]

    def group(self) -> dict[str, Any]:
        """The tree, if it is a config: keys with values."""
        if not isinstance(self.tree, dict):
            refuse(self.name, f"is no config: it holds a {type(self.tree).__name__}, not keys with values")
        return self.tree

    def where(self, key: str) -> str:
        """The place of a dotted key, or of the nearest group around it: `run.yaml:3:5`."""
        while key and key not in self.marks:
            key = key.rpartition(".")[0]
        place = self.marks.get(key)
        return f"{self.name}:{place[0]}:{place[1]}" if place else self.name


def refuse(name: str, why: str, place: tuple[int, int] | None = None, hint: str = "") -> NoReturn:
    """The error for a text called `name`, at a line and column if they are known."""
    where = f"{name}:{place[0]}:{place[1]}" if place else name
    raise ConfigFileError(f"`{name}` {why}" if place is None else f"`{name}`, line {place[0]}: {why}", where=where, hint=hint) from None


def place_of(index: int, text: str) -> tuple[int, int]:
    """Line and column of a character, both from 1."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def whole(text: str, refuse: Callable[[str], NoReturn]) -> int:
    """A numeral's integer, if it is one that Python can write again."""
    num_digits = len(text.lstrip("+-"))
    if num_digits > MAX_DIGITS:
        refuse(f"an integer of {num_digits:,} digits; at most {MAX_DIGITS:,}")
    value = int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if wrong_scalar(value):  # more digits than it has in another base
        refuse(wrong_scalar(value))
    return value


def floating(text: str, refuse: Callable[[str], NoReturn]) -> float:
    """A numeral's float, if nothing of its size is lost."""
    value = float(text)
    if math.isinf(value):
        refuse(f"{text[:40]} is beyond the range of a float")
    if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        refuse(f"{text[:40]} is too small for a float")
    return value
