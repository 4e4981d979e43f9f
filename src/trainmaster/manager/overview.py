"""Overviews: many runs as arrays, to look at or to plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Overview:
    """What was found of runs, each as an array with one entry a run, NaN where there is none."""

    keys: list[str]
    epochs: Array
    """-1 for what was never saved."""
    t_train: Array
    """Seconds for an epoch of training."""
    t_eval: Array
    previews: dict[str, Array]

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        """How many there are, how far and how fast, and the spread of each preview."""
        lines = [f"{len(self)} runs, {int((self.epochs >= 0).sum())} of them saved"]
        named = {
            "epochs": self.epochs[self.epochs >= 0],
            "seconds per epoch": self.t_train,
            "seconds per eval": self.t_eval,
            **self.previews,
        }
        for name, values in named.items():
            finite = sorted(float(value) for value in values if math.isfinite(value))
            if finite:
                middle = finite[len(finite) // 2]
                lines.append(f"  {name:<18} least {finite[0]:.4g}, middle {middle:.4g}, most {finite[-1]:.4g} ({len(finite)})")
        return "\n".join(lines)


def overview_of(rows: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]], p_keys: str | Iterable[str] | None) -> Overview:
    """The overview of runs, each with its key, stats and preview; `p_keys` None takes every number that a preview has."""
    import numpy as np

    found = list(rows)
    if p_keys is None:
        names = sorted({name for _, _, preview in found for name in preview if number(preview[name]) is not None})
    else:
        names = [p_keys] if isinstance(p_keys, str) else list(p_keys)
    return Overview(
        [key for key, _, _ in found],
        np.array([stats["epoch"] for _, stats, _ in found], dtype=int),
        np.array([_float(stats.get("t_train")) for _, stats, _ in found], dtype=float),
        np.array([_float(stats.get("t_eval")) for _, stats, _ in found], dtype=float),
        {name: np.array([_float(preview.get(name)) for _, _, preview in found], dtype=float) for name in names},
    )


def number(value: Any) -> int | float | None:
    """`value` as a plain number, if it is one: Python's, or a scalar of NumPy or torch."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _float(value: Any) -> float:
    found = number(value)
    try:
        return math.nan if found is None else float(found)
    except OverflowError:  # an integer that no float can hold
        return math.inf if found is not None and found > 0 else -math.inf
