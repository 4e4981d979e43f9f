"""Sparklines: the history of a metric in a few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"


def spark(values: Sequence[float], length: int = 24, can_draw: bool = True) -> str:
    """Draw values as a line of block characters, or of ASCII characters if `can_draw` is False.

    If there are more than `length` values, neighboring values are averaged. A `!` stands for neighboring values
    that are all NaN or infinite.

    >>> spark([1, 2, 3, 4], can_draw=False)
    '_-*@'
    """
    if not values:
        return ""
    parts = min(length, len(values))
    means = [_mean(values[len(values) * at // parts : len(values) * (at + 1) // parts]) for at in range(parts)]
    finite = [each for each in means if each is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    marks = BLOCKS if can_draw else PLAIN
    top = len(marks) - 1
    span = high - low
    return "".join("!" if each is None else marks[round((each - low) / span * top) if span > 0 else 0] for each in means)


def _mean(values: Sequence[float]) -> float | None:
    finite = [float(each) for each in values if abs(each) < 1e300 and not math.isnan(each)]
    return sum(each / len(finite) for each in finite) if finite else None
