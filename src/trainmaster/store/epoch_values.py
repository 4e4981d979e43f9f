"""The values of a metric by epoch. The result of a run is the last value of the metric up to the target epoch."""

from __future__ import annotations

from trainmaster.errors import TrainmasterError
from trainmaster.store.events import RowsByName
from trainmaster.store.metric_names import resolve_metric


def epoch_values(history: RowsByName, name: str, epochs: int | None) -> dict[int, float] | None:
    """Return the values of a metric by epoch, from epoch 1 up to the target `epochs`. Return None if there are none.

    Values after the target are ignored, so continuing a run for more epochs does not change its result.
    """
    try:
        rows = history[resolve_metric(name, history)]
    except TrainmasterError:
        return None
    values = {
        epoch: float(value)
        for epoch, value in rows
        if isinstance(epoch, int) and epoch >= 1 and (epochs is None or epoch <= epochs) and isinstance(value, int | float)
    }
    return values or None
