"""Numbers by which a training is judged: the loss of an evaluation set, or whatever else was recorded, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A number, under the name it is recorded by."""

    name: str
    value: float

    @property
    def is_greater_better(self) -> bool:
        return is_greater_better(self.name)


def is_greater_better(name: str) -> bool:
    """Whether the greatest is the best; by its last part, as in `metrics/valid/accuracy`."""
    return name.rpartition("/")[2].startswith(("acc", "return"))


def is_recorded_name(name: str) -> bool:
    """Whether it names a recorded number, such as `metrics/valid/accuracy`, and not an evaluation set."""
    return "/" in name


def find_metric(name: str | None, eval_losses: Mapping[str, float], writer: Any) -> Metric | None:
    """The number of this name at the end of an evaluation, None if nobody has recorded it.

    The name is that of an evaluation set, for its loss, or of a recorded number; without one it is the loss of the first set.
    """
    if name is None:
        name = next(iter(eval_losses), None)
    if name is None:
        return None
    if name in eval_losses:
        return Metric(f"losses/{name}/loss", eval_losses[name])
    last = getattr(writer, "last", None)
    value = last(name) if callable(last) else None
    return Metric(name, float(value)) if isinstance(value, int | float) else None


def takes_metric(schedule: Any) -> bool:
    """Whether a schedule's `step` wants a number, as that of ReduceLROnPlateau does; others would take it for the number of an epoch."""
    parameters = inspect.signature(schedule.step).parameters.values()
    return any(each.name == "metrics" or (each.default is each.empty and each.kind is not each.VAR_KEYWORD) for each in parameters)
