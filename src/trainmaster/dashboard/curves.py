"""Prepares curves for drawing: reduces them to a few thousand points while keeping peaks, and averages the curves of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.dashboard.event_columns import MIXED, AttemptLog, EventColumns, Position, Series
from trainmaster.store import Run

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

AXES = ("step", "epoch", "update", "sample", "time")
"""The possible x axes of curves. "step" stands for the unit in which the metric was logged."""
MAX_POINTS = 4000
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


class Curve(NamedTuple):
    over: str
    """The unit of `x`, such as "epoch" or "update". It is "second" for the time axis."""
    x: Floats
    y: Floats
    is_placed: bool = True
    """Whether the metric can be drawn over the requested axis. If not, the run has not recorded the necessary data, and `x` is empty."""


class Part(NamedTuple):
    """The indices of the points to draw, and whether any points are left out."""

    rows: Sequence[int]
    is_sampled: bool


def metric_names(columns: EventColumns, run: Run) -> list[str]:
    """Return the metrics that a run has logged, in the order in which they first appear."""
    return [*dict.fromkeys(name for _, log, _ in columns.chain(run) for name in log.series)]


def read_curve(columns: EventColumns, run: Run, metric: str, axis: str = "step") -> Curve | None:
    """Return the curve of a metric over all attempts of the run, with ascending `x`, or None if the run has not logged the metric.

    With the axis "step", `x` is in the unit in which the metric was logged. With "time", it is the time in seconds since the run started,
    without the pauses between attempts. With "epoch", "update" or "sample", steps are converted with the numbers of updates and samples
    that the run recorded at the end of each epoch. Points in an epoch that has not ended are left out.
    """
    import numpy as np

    chain = columns.chain(run)
    parts = [_part(log.series[metric], last) for _, log, last in chain if metric in log.series]
    if not parts:
        return None
    y = np.concatenate([part.y for part in parts])
    units = {part.over for part in parts}
    over = units.pop() if len(units) == 1 else MIXED
    if axis == "time":
        x, over = np.concatenate([*_times(run, chain, metric)]), "second"
    else:
        x = np.concatenate([part.x for part in parts])
        if over == "" and not np.isfinite(x).any():  # no step was logged, so use the index of each value
            x = np.arange(float(len(y)))
        if axis not in ("step", over):
            x, over = _converted(x, over, axis, _positions(chain)), axis
        elif over == MIXED:
            x = np.full(len(y), np.nan)
    is_known = np.isfinite(x)
    is_placed = bool(is_known.any() or not len(x))
    x, y = x[is_known], y[is_known]
    if np.any(np.diff(x) < 0):
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    return Curve(over, x, y, is_placed)


def _part(series: Series, last: float) -> Curve:
    """Return the values of a metric in one attempt."""
    import numpy as np

    is_part = np.array(series.number) < last
    return Curve(series.over, np.array(series.x)[is_part], np.array(series.value)[is_part])


def _times(run: Run, chain: Sequence[AttemptLog], metric: str) -> Iterator[Floats]:
    """For each attempt that logged the metric, yield the times of its values, in seconds since the run started."""
    import numpy as np

    before = 0.0
    for attempt, log, last in chain:
        start = run.claim_or_empty(attempt).get("toc")
        if (series := log.series.get(metric)) is not None:
            x = np.array(series.time)[np.array(series.number) < last]
            yield x - (start if isinstance(start, int | float) else x[0] if len(x) else 0.0) + before
        if last < np.inf:
            before += _seconds(log.series.values(), last, start)


def _positions(chain: Sequence[AttemptLog]) -> dict[str, Floats]:
    """Return the total number of epochs, updates, batches and samples at the start and at the end of each epoch.

    If the batches of an epoch were not counted, the totals of batches and samples are NaN from this epoch on.
    """
    import numpy as np

    rows: dict[float, Position] = {}
    for _, log, last in chain:
        rows |= {row.epoch: row for row in log.positions if row.number < last}
    epochs = sorted(epoch for epoch in rows if epoch > 0)
    is_whole = epochs == [*range(1, len(epochs) + 1)]
    nothing = np.full(len(epochs) + 1, np.nan)

    def totals(values: list[float]) -> Floats:
        return np.r_[0.0, np.cumsum(values)] if is_whole else nothing

    return {
        "epoch": np.array([0.0, *epochs]),
        "update": np.array([0.0, *(rows[epoch].update for epoch in epochs)]),
        "batch": totals([rows[epoch].num_batches for epoch in epochs]),
        "sample": totals([rows[epoch].num_samples for epoch in epochs]),
    }


def _converted(x: Floats, over: str, to: str, positions: Mapping[str, Floats]) -> Floats:
    """Convert steps to another unit by linear interpolation within each epoch. For epochs without recorded positions, the result is NaN."""
    import numpy as np

    found = np.full(len(x), np.nan)
    if over not in positions or to not in positions or len(positions[over]) < 2:
        return found
    known, wanted, epochs = positions[over], positions[to], positions["epoch"]
    is_epoch = (np.diff(epochs) == 1) & (np.diff(known) > 0)  # false for gaps and for epochs without updates
    for side in ("left", "right"):  # at the boundary between two epochs, the positions of one epoch may be missing
        end = np.clip(np.searchsorted(known, x, side), 1, len(known) - 1)
        start = end - 1
        is_known = is_epoch[start] & (x >= known[start]) & (x <= known[end]) & np.isnan(found)
        start, end, inside = start[is_known], end[is_known], x[is_known]
        found[is_known] = wanted[start] + (inside - known[start]) / (known[end] - known[start]) * (wanted[end] - wanted[start])
    return found


def _seconds(series: Any, last: float, start: Any) -> float:
    """Return the time in seconds from the start of an attempt to its last event. Events that the next attempt discarded are ignored."""
    times = [time for each in series for number, time in zip(each.number, each.time, strict=True) if number < last]
    return max(times) - start if times and isinstance(start, int | float) else 0.0


def thin(curve: Curve, points: int = MAX_POINTS, low: float | None = None, high: float | None = None) -> Part:
    """Choose the points to draw between `low` and `high`: in each bucket, the first, last, lowest and highest point, and the first NaN.

    The edges of the buckets are multiples of a power of two, so the chosen points stay in place while a curve grows.
    """
    import numpy as np

    x, y = curve.x, curve.y
    start = 0 if low is None else max(0, int(np.searchsorted(x, low, "left")) - 1)
    end = len(x) if high is None else min(len(x), int(np.searchsorted(x, high, "right")) + 1)
    if end - start <= max(points, 8):
        return Part(range(start, end), False)
    x, y = x[start:end], y[start:end]
    span = max(float(x[-1] - x[0]), 1e-12)
    width = 2.0 ** np.ceil(np.log2(span / (max(points, 8) / 5)))
    buckets = np.floor(x / width)
    firsts = np.flatnonzero(np.r_[True, np.diff(buckets) != 0])
    lasts = np.r_[firsts[1:] - 1, len(x) - 1]
    group = np.repeat(np.arange(len(firsts)), np.diff(np.r_[firsts, len(x)]))
    lowest, highest = (_first_rows(y == edge[group], group) for edge in (np.fmin.reduceat(y, firsts), np.fmax.reduceat(y, firsts)))
    gaps = _first_rows(np.isnan(y), group)
    is_drawn = np.zeros(len(x), bool)
    is_drawn[np.concatenate([firsts, lasts, lowest, highest, gaps])] = True
    rows = np.flatnonzero(is_drawn) + start
    return Part(rows.tolist(), True)


def _first_rows(is_chosen: Any, group: Any) -> Any:
    """Return, for each group, the index of the first row where `is_chosen` is True. The rows of a group must be adjacent."""
    import numpy as np

    rows = np.flatnonzero(is_chosen)
    return rows[np.r_[True, np.diff(group[rows]) != 0][: len(rows)]]


class Band(NamedTuple):
    """The mean of several curves and its 95 % confidence interval, at every `x` where all curves have a point."""

    over: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def band_of(curves: Sequence[Curve]) -> Band:
    """Return the mean of several curves and its 95 % confidence interval, at every `x` where all curves have a point."""
    import numpy as np

    units = {curve.over for curve in curves}
    if len(units) > 1:  # curves in different units, such as epochs and updates, must not be averaged
        nothing = np.array([])
        return Band("", nothing, nothing, nothing, nothing)
    common = curves[0].x
    for curve in curves[1:]:
        common = np.intersect1d(common, curve.x)
    common = np.unique(common)
    values = np.stack([curve.y[np.searchsorted(curve.x, common, "right") - 1] for curve in curves])
    mean = values.mean(axis=0)
    margin = np.full_like(mean, np.nan)
    if len(curves) > 1:
        with np.errstate(invalid="ignore"):
            margin = t_quantile(len(curves) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(curves))
    return Band(curves[0].over, common, mean, mean - margin, mean + margin)


def t_quantile(df: int) -> float:
    """Return the 97.5 % quantile of Student's t-distribution.

    For up to 30 degrees of freedom, it is read from a table. For more, it is approximated by a Cornish-Fisher expansion.
    """
    if df <= len(_T_975):
        return _T_975[df - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
