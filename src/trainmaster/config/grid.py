"""`Grid`: yields all combinations of the alternatives in a config."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster.config.config import Config, with_origins
from trainmaster.config.identity import canonical
from trainmaster.config.paths import leaves
from trainmaster.config.to_plain import value_to_plain
from trainmaster.config.value_table import IN_CODE
from trainmaster.errors import ConfigError, Problem

_NUM_ROUNDS = 6
SWEEP = "sweep"
"""The recorded origin of a value that a sweep chose from several alternatives."""


class Grid:
    """Yields every combination of the values in `choices` once, in a random order that depends on `seed`.

    The combinations are created lazily.

    A list or tuple in `choices` contains alternatives (duplicates are ignored). Any other value is fixed. To use a list
    as a value, wrap it in another list.

    >>> grid = Grid({"arch": ["ResNet18", "ResNet50"], "lr": [0.1, 0.01, 0.001], "data": "digits"})
    >>> grid.count
    6
    >>> grid[0]
    Config({'arch': 'ResNet18', 'lr': 0.1, 'data': 'digits'})
    """

    def __init__(self, choices: Mapping[str, Any] | str | os.PathLike[str], seed: int = 0) -> None:
        config = Config(choices) if isinstance(choices, Mapping) else Config.load(choices)
        self.seed = seed
        self._alternatives = _alternatives(config)
        self._origins = {key: SWEEP if len(values) > 1 else config.origin(key) for key, values in self._alternatives.items()}
        self.count = 1
        """The number of combinations. (`len()` raises an error for a number above `sys.maxsize`.)"""
        for values in self._alternatives.values():
            self.count *= len(values)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: int) -> Config:
        """Return the combination at `index`, in the order of `choices`. The last key varies fastest."""
        index = operator.index(index)
        if not -self.count <= index < self.count:
            raise IndexError(f"there is no combination {index}: the grid has {self.count:,}")
        rest = index % self.count
        chosen: dict[str, Any] = {}
        for key, values in reversed(self._alternatives.items()):
            rest, number = divmod(rest, len(values))
            chosen[key] = values[number]
        return with_origins({key: chosen[key] for key in self._alternatives}, self._origins)

    def __iter__(self) -> Iterator[Config]:
        return (self[index] for index in shuffled(self.count, self.seed))

    def covering(self) -> Iterator[Config]:
        """Yield a few combinations that together contain every alternative of every key."""
        for number in range(max(map(len, self._alternatives.values()), default=1)):
            yield Config({key: values[min(number, len(values) - 1)] for key, values in self._alternatives.items()})

    @property
    def swept(self) -> list[str]:
        """The keys that have more than one alternative."""
        return [key for key, values in self._alternatives.items() if len(values) > 1]

    def __repr__(self) -> str:
        return f"Grid({self.count:,} combinations of {', '.join(self._alternatives)}; seed {self.seed})"


def _alternatives(choices: Config) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for key, leaf in leaves(choices, into_lists=False):
        values = leaf.tolist() if hasattr(leaf, "tolist") else leaf  # a NumPy array or scalar
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            values = [values]
        where = choices.origin(key)
        if not values:
            problems.append(Problem(key, "has no values to choose from", "[]", where if where != IN_CODE else ""))
        for number, each in enumerate(values):
            value_to_plain(each, (*key.split("."), number), problems, allows_typed=True)
        if not problems:
            found[key] = _unique(values)
    if problems:
        raise ConfigError.of("the choices", problems)
    return found


def _unique(values: Sequence[Any]) -> list[Any]:
    """Return `values` without duplicates. Two values are duplicates if they have the same canonical form."""
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(canonical({"value": value}), value)
    return list(found.values())


def shuffled(count: int, seed: int) -> Iterator[int]:
    """Yield every number below `count` once, in a random order that depends only on `seed`, without keeping a list in memory.

    A Feistel network permutes all numbers below a power of 4, which may be greater than `count`. If the network returns a
    number that is not below `count`, the number is permuted again.

    >>> sorted(shuffled(5, seed=1)) == [0, 1, 2, 3, 4]
    True
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    width = (half + 7) // 8
    keys = [hashlib.sha256(f"{seed}/{number}".encode()).digest() for number in range(_NUM_ROUNDS)]
    for start in range(count):
        index = start
        while True:
            left, right = index >> half, index & mask
            for key in keys:
                mixed = hashlib.shake_128(key + right.to_bytes(width, "big")).digest(width)
                left, right = right, left ^ (int.from_bytes(mixed, "big") & mask)
            index = left << half | right
            if index < count:
                break
        yield index
