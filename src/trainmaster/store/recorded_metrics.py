"""Checks a metric that is needed after training against the metrics that the runs of a store have recorded."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trainmaster.errors import MetricNameError, StoreError
from trainmaster.store.metric_names import matching_metrics, refuse_misspelled

if TYPE_CHECKING:
    from trainmaster.store.store import Store

_MAX_READ: Final = 50
"""How many logs are read before a metric counts as unknown."""


def refuse_misspelled_metric(store: Store, name: str) -> None:
    """Raise `MetricNameError` if no run has the metric `name`, but some have a metric of which it is a misspelling.

    Any other name is accepted, because the metric may be new.
    """
    known = set(store.index.runs().metrics)
    try:
        refuse_misspelled(name, known)
    except MetricNameError:  # the index does not have to contain all metrics; the logs do, but reading them takes longer
        if not any(matching_metrics(name, names) for names in _recorded_names(store)):
            raise


def _recorded_names(store: Store) -> Iterator[set[str]]:
    """Yield the names in the logs of some runs. Runs that cannot be read are skipped: `trainmaster verify` reports them."""
    for key in itertools.islice(store.configs, _MAX_READ):
        with contextlib.suppress(StoreError, FileNotFoundError):
            yield {*map(str, store.run(key).history)}
