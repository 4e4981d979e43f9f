"""Finds the loss on an evaluation set, or another recorded metric, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import LoopError, SettingError
from trainmaster.store.metric_names import better_of, is_greater_better, listed, matching_metrics, resolve_metric, suggest

if TYPE_CHECKING:
    from trainmaster.loop.training import Training


class Metric(NamedTuple):
    """A metric's name and its recorded value."""

    name: str
    value: float

    @property
    def is_greater_better(self) -> bool:
        return is_greater_better(self.name)


def loss_name(datasource_name: str) -> str:
    """Return the name under which the loss on an evaluation set is recorded."""
    return f"{datasource_name}/loss"


def own_first(name: str, known: Iterable[str], own_sets: Iterable[str]) -> list[str]:
    """Return the metrics to search for `name`.

    If a metric of the loop's own evaluation sets matches, these are the metrics of those sets, otherwise all metrics.

    >>> own_first("loss", ["valid/loss", "test/loss", "train/loss"], ["valid"])
    ['valid/loss']
    """
    names, prefixes = list(known), tuple(f"{each}/" for each in own_sets)
    own = [each for each in names if each.startswith(prefixes)]
    return own if name not in names and matching_metrics(name, own) else names


def find_metric(name: str | None, eval_losses: Mapping[str, float], writer: Any, own_sets: Iterable[str] = ()) -> Metric | None:
    """Look up a metric and its value at the end of an evaluation. Return None if the metric was not recorded.

    `name` is the name of a recorded metric, the last part of such a name, or the name of an evaluation set, which means the
    loss on that set. The default, None, means the loss on the first set. Metrics of `own_sets`, the evaluation sets of
    the loop, take precedence over those of other sets. Raise `MetricNameError` if several metrics end with the name.
    """
    losses = {loss_name(each): value for each, value in eval_losses.items()}
    if name is None:
        return next((Metric(*each) for each in losses.items()), None)
    wanted = loss_name(name) if name in eval_losses else name
    last = getattr(writer, "last", None)
    known = {*losses, *recorded_names(writer)}
    if callable(last) and last(wanted) is not None:
        known.add(wanted)
    if not matching_metrics(wanted, known):
        return None
    full = resolve_metric(wanted, own_first(wanted, known, own_sets))
    value = losses[full] if full in losses else last(full) if callable(last) else None
    return Metric(full, float(value)) if isinstance(value, int | float) else None


def recorded_names(writer: Any) -> list[str]:
    """Return the names of the metrics that a writer has recorded, or an empty list if the writer has no `names` method."""
    names = getattr(writer, "names", None)
    return list(names()) if callable(names) else []


def check_monitor(monitor: Any, example: str) -> None:
    """Raise an error if `monitor` cannot be the name of a metric."""
    if monitor is not None and (not isinstance(monitor, str) or not monitor.strip()):
        raise SettingError(f"`monitor` must be the name of a metric, not {monitor!r}", hint=example)


def expected_name(monitor: str | None, loop: Training) -> str:
    """Return the full name of the monitored metric if it is a loss, otherwise `monitor`.

    The full names of other metrics are not known before they are recorded.
    """
    sets = loop.eval_data
    name = monitor if monitor is not None else next(iter(sets), "loss")
    if name in sets:
        return loss_name(name)
    matches = matching_metrics(name, [*map(loss_name, sets), "train/loss"])
    return matches[0] if len(matches) == 1 else name


def is_called(full_name: str, monitor: str) -> bool:
    """Return whether `monitor` is the full name of a metric, or the last part of its full name."""
    return full_name == monitor or full_name.endswith(f"/{monitor}")


def mode_of(name: str, loop: Training) -> str | None:
    """Return "min" if lower values of a metric are better, "max" if higher values are better, or None if this is not known.

    If an extension that monitors the metric sets a mode, return that mode. Otherwise, infer the mode from the metric's name.
    """
    for each in loop.extensions.values():
        monitor, mode = getattr(each, "monitor", None), getattr(each, "mode", None)
        if isinstance(monitor, str) and mode in ("min", "max") and is_called(name, expected_name(monitor, loop)):
            return str(mode)
    return better_of(name)


def check_direction(monitor: str | None, mode: str | None, loop: Training, extension: str) -> None:
    """Raise an error if neither `mode` nor the name of the monitored metric indicates which values are better."""
    if mode is None and better_of(expected_name(monitor, loop)) is None:
        monitors = {getattr(each, "monitor", None) for each in loop.extensions.values()}
        others = {each for each in monitors if isinstance(each, str) and each != monitor}
        prefixed = {f"{each}/{other}" for each in loop.eval_data for other in others if "/" not in other}
        meant = suggest(str(monitor), {*map(loss_name, loop.eval_data), *recorded_names(loop.writer), *others, *prefixed})
        raise SettingError(
            f"{extension} does not know whether lower or higher is better for {monitor!r}",
            hint=(f"{meant} Otherwise: " if meant else "") + f'{extension}(monitor="{monitor}", mode="max"), or "min"',
        )


def monitored(monitor: str | None, loop: Training, eval_losses: Mapping[str, float], who: str) -> Metric | None:
    """Return the monitored metric at the end of an evaluation. Raise an error if it was not recorded.

    Before the end of the first epoch, return None instead of raising an error if training may still record the metric.
    """
    found = find_metric(monitor, eval_losses, loop.writer, loop.eval_data)
    if found is not None or monitor is None:
        return found
    known = {*map(loss_name, eval_losses), *recorded_names(loop.writer)}
    sets = loop.eval_data
    is_of_a_set = monitor in sets or any(monitor.startswith(f"{each}/") for each in sets)
    if loop.epoch_num == 0 and not is_of_a_set and not suggest(monitor, known):
        return None
    writer = loop.writer
    raise LoopError(
        f"{who} monitors {monitor!r}, which was not recorded",
        where=f"stage eval, after epoch {loop.epoch_num}",
        why=None if hasattr(writer, "last") else f"the writer, a {type(writer).__name__}, cannot return it: it has no method `last(tag)`",
        known=listed(known) or "none",
        hint=suggest(monitor, known) or "record it in an extension with writer.add_scalar, no later than in post_eval_step_epoch",
    )
