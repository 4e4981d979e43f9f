"""Checks before training whether the name of a metric is misspelled, based on the metrics that other runs have recorded."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from trainmaster.errors import MetricNameError, StoreError
from trainmaster.store.metric_names import matching_metrics, refuse_misspelled

if TYPE_CHECKING:
    from trainmaster.store.store import Store

_MAX_READ: Final = 50
"""How many logs are read before a metric is considered unknown."""


def refuse_misspelled_metric(store: Store, name: str) -> None:
    """Raise `MetricNameError` if no run has the metric `name`, but `name` is a misspelling of a metric that some run has.

    Any other name is accepted, because the metric may be new.
    """
    known = set(store.index.runs().metrics)
    try:
        refuse_misspelled(name, known)
    except MetricNameError:  # the index may lack some metrics, so check the logs too, which takes longer
        if not any(matching_metrics(name, names) for names in _recorded_names(store)):
            raise


def unknown_metrics(store: Store, names: Iterable[str]) -> list[str]:
    """Return the names that do not refer to a metric of any run, or an empty list if no run has any metrics."""
    known = set(store.index.runs().metrics)
    missing = [name for name in names if known and not matching_metrics(name, known)]
    recorded = [*_recorded_names(store)] if missing else []
    return [name for name in missing if not any(matching_metrics(name, each) for each in recorded)]


def _recorded_names(store: Store) -> Iterator[set[str]]:
    """Yield the metric names in the log of each run, for at most `_MAX_READ` runs.

    Runs that cannot be read are skipped, because `trainmaster verify` reports them.
    """
    for key in itertools.islice(store.configs, _MAX_READ):
        with contextlib.suppress(StoreError, FileNotFoundError):
            yield {*map(str, store.run(key).history)}
