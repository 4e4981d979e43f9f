"""Converts results to pandas DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainmaster.errors import MissingExtraError
from trainmaster.store.metric_names import resolve_metric

if TYPE_CHECKING:
    import pandas as pd

    from trainmaster.analysis.results import Results


def import_pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("data frames need pandas: pip install 'trainmaster[analysis]'") from None
    return pandas


def steps_frame(results: Results, metrics: str | Iterable[str] | None) -> pd.DataFrame:
    """Return every logged value as a DataFrame, with one row for each combination of run, unit of steps (such as epochs) and step.

    If a metric was logged twice at the same step, the last value is used.
    """
    pd = import_pandas()
    wanted = None if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)
    names = None if wanted is None else [resolve_metric(name, results.table.metrics) for name in wanted]
    runs = dict(results.read_steps(names))
    names = sorted({name for found in runs.values() for name in found}) if names is None else names
    rows: dict[tuple[int, str, float], dict[str, float]] = {}
    for row, found in runs.items():
        for name in names:
            if name in found:
                for x, y in zip(found[name].xs, found[name].ys, strict=True):
                    rows.setdefault((row, found[name].over, x), {})[name] = y
    order = sorted(rows)
    at = [row for row, _, _ in order]
    config = {name: values[at] if at else values[:0] for name, values in results.config.items()}
    columns: dict[str, Any] = {"over": [over for _, over, _ in order]}
    columns |= {f"{name} (metric)" if name in config else name: [rows[each].get(name, math.nan) for each in order] for name in names}
    xs = [x for _, _, x in order]
    steps = [int(x) for x in xs] if all(x.is_integer() for x in xs) else xs
    index = pd.MultiIndex.from_arrays([[results.keys[row] for row in at], steps], names=["key", "step"])
    return pd.DataFrame(columns | config, index=index)
