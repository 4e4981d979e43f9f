"""`Overview`: the values of many runs as arrays, to print or plot. `Ranking`: runs, ranked by a metric."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.arguments import is_number
from trainmaster.errors import SettingError
from trainmaster.store.metric_names import better_of, matching_metrics, resolve_metric
from trainmaster.store.monitored import is_guess, ranked_by

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Overview:
    """Values of many runs, as arrays with one entry per run. A missing value is NaN."""

    keys: list[str]
    epochs: Array
    """The epoch at which each run was last saved, or -1 if it was never saved."""
    t_train: Array
    """The seconds that each run takes to train an epoch."""
    t_eval: Array
    previews: dict[str, Array]

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        """Return the number of runs, and the minimum, median and maximum of each value."""
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
                median = statistics.median(finite)
                lines.append(f"  {name:<18} min {finite[0]:.4g}, median {median:.4g}, max {finite[-1]:.4g} ({len(finite)})")
        return "\n".join(lines)


Row = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The key, stats and preview of a run."""


class Ranking(NamedTuple):
    """Runs, ranked by a metric."""

    metric: str
    is_greater_better: bool
    rows: list[tuple[float, str]]
    """The value and the key of each run that has the metric, the best first."""
    is_guess: bool = False
    """Whether the metric is a guess, because the runs have several metrics and do not determine which one to use."""
    has_direction: bool = True
    """Whether it is known, from the runs or from the name of the metric, which values are better. If not, the lowest value comes first."""


def ranking_of(rows: Iterable[Row], p_key: str | None = None, reverse: bool | None = None, is_lenient: bool = False) -> Ranking | None:
    """Rank runs by a metric: `p_key`, else the metric that the runs monitor, else `loss_test`. Return None if no run has a metric.

    If this rule does not determine a single metric, an error is raised. With `is_lenient`, the monitored metric that most runs
    have is used instead or, if no metric is monitored, the metric that most runs have.
    """
    runs = list(rows)
    numbers = {key: {name: number(value) for name, value in preview.items()} for key, _, preview in runs}
    counts = Counter(name for each in numbers.values() for name, value in each.items() if value is not None)
    if not counts:
        return None
    monitored = [best for _, stats, _ in runs if isinstance(best := stats.get("best"), Mapping)]
    modes = {name: best.get("mode") for best in monitored if isinstance(name := best.get("metric"), str)}
    name, is_greater_better = ranked_by(p_key, counts, modes, is_lenient, "p_key")
    has_direction = reverse is not None or is_greater_better or modes.get(name) is not None or better_of(name) is not None
    if not has_direction and not is_lenient:
        raise SettingError(
            f"nothing says whether lower or higher is better for {name!r}",
            hint=f'best_work(p_key="{name}", reverse=True) if higher is better, else reverse=False; to record it with'
            f' each run, set `monitor = "{name}"` and `mode = "max"` in the manager class, or in the loop\'s CheckpointSaver',
        )
    reverse = is_greater_better if reverse is None else reverse
    values = [(value, key) for key, each in numbers.items() if (value := each.get(name)) is not None and value == value]
    rows_by_value = sorted(values, key=lambda each: (-each[0] if reverse else each[0], each[1]))
    return Ranking(name, reverse, rows_by_value, p_key is None and is_guess(counts, modes), has_direction)


def metric_of(preview: Mapping[str, Any], monitor: str | None = None) -> tuple[str, float] | None:
    """Return the name and value of the metric by which to rank a run, or None if the run has no metrics.

    This is used for managers with their own `train` and `eval` methods.
    """
    known = [name for name, value in preview.items() if number(value) is not None]
    wanted = monitor if monitor is not None and len(matching_metrics(monitor, known)) == 1 else None
    ranking = ranking_of([("", {}, preview)], wanted, is_lenient=True)
    return (ranking.metric, ranking.rows[0][0]) if ranking is not None and ranking.rows else None


def find_number(name: str, values: Mapping[str, Any], names: Iterable[str] | None = None) -> tuple[str, float] | None:
    """Return the full name and the value of a metric, or None if `name` matches no metric or several, or the metric is not a number.

    By default, `names` are the keys of `values`.
    """
    found = matching_metrics(name, values if names is None else names)
    value = number(values[found[0]]) if len(found) == 1 else None
    return None if value is None else (found[0], value)


def overview_of(rows: Iterable[Row], p_keys: str | Iterable[str] | None) -> Overview:
    """Return an overview of runs. If `p_keys` is None, the overview contains every number in the previews."""
    import numpy as np

    runs = list(rows)
    known = {name for _, _, preview in runs for name in preview if number(preview[name]) is not None}
    if p_keys is None:
        names = {name: name for name in sorted(known)}
    else:
        wanted = [p_keys] if isinstance(p_keys, str) else list(p_keys)
        names = {name: resolve_metric(name, known) if runs else name for name in wanted}
    return Overview(
        [key for key, _, _ in runs],
        np.array([stats["epoch"] for _, stats, _ in runs], dtype=int),
        np.array([_float(stats.get("t_train")) for _, stats, _ in runs], dtype=float),
        np.array([_float(stats.get("t_eval")) for _, stats, _ in runs], dtype=float),
        {name: np.array([_float(preview.get(full)) for _, _, preview in runs], dtype=float) for name, full in names.items()},
    )


def number(value: Any) -> int | float | None:
    """Return `value` as a plain number if it is a number or a NumPy or torch scalar, else None."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return value if is_number(value) else None


def _float(value: Any) -> float:
    found = number(value)
    try:
        return math.nan if found is None else float(found)
    except OverflowError:  # an integer too large for a float
        return math.inf if found is not None and found > 0 else -math.inf
