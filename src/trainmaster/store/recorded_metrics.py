"""Checks a metric that is needed after training against the metrics that the runs of a store have recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.errors import MetricNameError, StoreError
from trainmaster.store.metric_names import matching_metrics, refuse_misspelled

if TYPE_CHECKING:
    from trainmaster.store.run import Run
    from trainmaster.store.store import Store


def refuse_misspelled_metric(store: Store, name: str) -> None:
    """Raise `MetricNameError` if no run has the metric `name`, but some have a metric with a similar name.

    A name that is not similar to any recorded one is accepted, because the metric may be new.
    """
    known: set[str] = set()
    for names in _names(store, lambda run: run.preview()):
        if matching_metrics(name, names):
            return
        known |= names
    try:
        refuse_misspelled(name, known)
    except MetricNameError:  # a preview does not have to contain all metrics, but reading the logs takes longer
        if not any(matching_metrics(name, names) for names in _names(store, lambda run: run.history)):
            raise


def _names(store: Store, read: Callable[[Run], Mapping[str, Any] | None]) -> Iterator[set[str]]:
    """Yield the names of the metrics of each run. Runs that cannot be read are skipped: `trainmaster verify` reports them."""
    for key in store.configs:
        try:
            yield {*map(str, read(store.run(key)) or ())}
        except (StoreError, FileNotFoundError):
            continue
