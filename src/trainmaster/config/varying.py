"""Finds the keys whose values differ between configs, and shortens names and values for tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster.config.difference import diff
from trainmaster.config.to_plain import is_same


class VaryingKeys:
    """The dotted keys whose values differ between the configs added so far, in the order of the first config.

    >>> varying = VaryingKeys([{"lr": 0.1, "depth": 2}, {"lr": 0.2, "depth": 2}])
    >>> varying.names
    ['lr']
    """

    def __init__(self, configs: Iterable[Mapping[str, Any]] = ()) -> None:
        self._first: Mapping[str, Any] | None = None
        self._names: dict[str, None] = {}
        for config in configs:
            self.add(config)

    def add(self, config: Mapping[str, Any]) -> None:
        if self._first is None:
            self._first = config
        self._names.update(dict.fromkeys(name for name, *_ in diff(self._first, config)))

    @property
    def names(self) -> list[str]:
        first = [name for name in self._first or () if name in self._names]
        return [*first, *(name for name in [*self._names] if name not in first)]


def short_names(names: Iterable[str], separator: str, known: Iterable[str] = ()) -> dict[str, str]:
    """Return the shortest ending of each name that is unique among `names` and `known`.

    >>> short_names(["valid/loss", "valid/accuracy"], "/", known=["train/loss"])
    {'valid/loss': 'valid/loss', 'valid/accuracy': 'accuracy'}
    """
    wanted = [*names]
    parts = [name.split(separator) for name in {*wanted, *known}]
    found: dict[str, str] = {}
    for name in wanted:
        own = name.split(separator)
        lengths = (count for count in range(1, len(own)) if own[-count] and sum(each[-count:] == own[-count:] for each in parts) == 1)
        found[name] = separator.join(own[-next(lengths, len(own)) :])
    return found


def short_values(values: Sequence[Any], limit: int = 24) -> list[str]:
    """Return the values of one key as short strings. Different values get different strings if possible.

    Floats are rounded to four significant digits, unless different values would then look the same. Values other than
    numbers are shortened to `limit` characters.

    >>> short_values([0.1, 1 / 3, True, None]), short_values([0.12345, 0.12346])
    (['0.1', '0.3333', 'true', 'none'], ['0.12345', '0.12346'])
    >>> short_values(["/data/digits/1/train.csv", "/data/digits/2/train.csv"], limit=12)
    ['..s/1..n.csv', '..s/2..n.csv']
    """
    for texts in ([_text(each) for each in values], [str(each) for each in values]):
        start = max(0, sum(1 for _ in itertools.takewhile(lambda each: len({*each}) == 1, zip(*texts, strict=False))) - 2)
        for shown in (texts, [f"..{text[start:]}" for text in texts]):
            cut = [
                text if isinstance(value, int | float) else _cut(each, limit)
                for value, text, each in zip(values, texts, shown, strict=True)
            ]
            if _is_unambiguous(cut, values):
                return cut
    return [text if isinstance(value, int | float) else _cut(text, limit) for value, text in zip(values, texts, strict=True)]


def _cut(text: str, limit: int) -> str:
    """Cut out the middle of a string that is too long."""
    half = limit // 2 - 1
    return text if len(text) <= limit else f"{text[:half]}..{text[-half:]}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_unambiguous(texts: Sequence[str], values: Sequence[Any]) -> bool:
    """Return whether equal strings always stand for equal values."""
    first: dict[str, Any] = {}
    return all(is_same(first.setdefault(text, value), value) for text, value in zip(texts, values, strict=True))
