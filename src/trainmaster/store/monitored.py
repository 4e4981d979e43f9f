"""Chooses the metric by which runs are ranked, and its direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainmaster.errors import MetricNameError
from trainmaster.store.metric_names import better_of, is_greater_better, listed, resolve_metric


class RankedBy(NamedTuple):
    """A metric, and whether greater values of it are better."""

    metric: str
    is_greater_better: bool


def ranked_by(
    name: str | None, counts: Mapping[str, int], modes: Mapping[str, str | None], is_lenient: bool = False, argument: str = "metric"
) -> RankedBy:
    """Return the metric by which to rank runs, and its direction.

    The metric is `name` or, if `name` is None, the metric that the runs monitor. If they do not monitor a metric, it is
    `loss_test`.

    `counts` maps each metric to the number of runs that logged it. `modes` maps each monitored metric to "min" or "max".

    If `name` is None, the choice may be unclear: the runs may monitor different metrics, or have neither a monitored
    metric nor `loss_test`. In this case, raise an error that mentions `argument`. With `is_lenient`, instead choose the
    metric that most runs have, but only among the monitored metrics if there are any. If several metrics are equally
    common, choose one whose direction can be inferred from its name.

    The direction is the one that the runs use for monitoring. If the metric is not monitored, the direction is inferred
    from its name.
    """
    monitored = {each: mode for each, mode in modes.items() if each in counts}
    is_clear = name is not None or _is_declared(counts, modes)
    if not is_clear and is_lenient:
        name = min(counts, key=lambda each: (each not in monitored, -counts[each], better_of(each) is None, each))
    elif not is_clear and monitored:
        hint = f"name one, {argument}={min(monitored)!r}, or choose runs by a condition"
        raise MetricNameError("these runs monitor different metrics", known=listed(monitored), hint=hint)
    elif not is_clear:
        raise MetricNameError("these runs monitor no metric", known=listed(counts), hint=f"name one: {argument}={min(counts)!r}")
    metric = resolve_metric(name if name is not None else next(iter(monitored), "loss_test"), counts)
    mode = monitored.get(metric)
    is_greater = mode == "max" if mode in ("min", "max") else metric.startswith(("acc", "return")) or is_greater_better(metric)
    return RankedBy(metric, is_greater)


def is_guess(counts: Mapping[str, int], modes: Mapping[str, str | None]) -> bool:
    """Return whether `ranked_by` with `is_lenient` has to choose among several metrics."""
    return len(counts) > 1 and not _is_declared(counts, modes)


def _is_declared(counts: Mapping[str, int], modes: Mapping[str, str | None]) -> bool:
    """Return whether the runs themselves determine the metric.

    This is the case if they monitor exactly one metric, or if they monitor none and have `loss_test`.
    """
    monitored = [each for each in modes if each in counts]
    return len(monitored) == 1 or (not monitored and "loss_test" in counts)
