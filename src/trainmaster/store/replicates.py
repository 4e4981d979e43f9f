"""Groups replicates (runs that differ only in their seed), and computes the mean and standard deviation of their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from trainmaster.arguments import is_number
from trainmaster.store.run_table import RunTable


class Stats(NamedTuple):
    """The mean and the sample standard deviation of some values.

    The mean is None if there are no values, and the standard deviation is None if there are fewer than two.
    """

    mean: float | None
    std: float | None
    num: int


def group_rows(table: RunTable, rows: Iterable[int]) -> list[tuple[int, ...]]:
    """Group the rows of runs that differ only in their seed. The groups are in the order of their first rows.

    Config keys that end in `seed` are treated as seeds, and so are fields marked `Replicate`. If several runs have the same
    seed, only one of them is used: the first finished run or, if none is finished, the first run. Runs without a readable
    config are left out.
    """
    groups: dict[str, dict[str, int]] = {}
    names, replicates, states = table.fact("group"), table.fact("replicate"), table.fact("state")
    for row in rows:
        if names[row] is None:
            continue
        group = groups.setdefault(names[row], {})
        other = group.get(replicates[row])
        if other is None or (states[other] != "finished" and states[row] == "finished"):
            group[replicates[row]] = row
    return [tuple(group.values()) for group in groups.values()]


def stats_of(values: Iterable[Any]) -> Stats:
    """Return the statistics of those values that are numbers.

    >>> stats_of([1, 3, None])
    Stats(mean=2.0, std=1.4142135623730951, num=2)
    """
    numbers = [to_float(value) for value in values if is_number(value)]
    if not numbers:
        return Stats(None, None, 0)
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return Stats(mean, None, len(numbers))
    return Stats(mean, math.sqrt(sum((number - mean) * (number - mean) for number in numbers) / (len(numbers) - 1)), len(numbers))


def to_float(value: float) -> float:
    """Convert a number to a float. An integer that is too large becomes infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
