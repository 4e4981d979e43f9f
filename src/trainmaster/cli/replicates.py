"""Groups replicates, which are runs that differ only in their seed, and computes mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.store.run_table import RunTable
    from trainmaster.store.summary import Summary


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. Statistics use the finished runs only."""

    runs: Sequence[Summary]

    @cached_property
    def finished(self) -> list[Summary]:
        return [run for run in self.runs if run.state == "finished"]

    @property
    def config(self) -> Mapping[str, Any]:
        """The config values that all runs share, without the seed."""
        from trainmaster.config import Config
        from trainmaster.config.identity import without_seeds
        from trainmaster.config.to_plain import is_same
        from trainmaster.store.summary import flat

        first, *others = [dict(flat(without_seeds(run.config))) for run in self.runs]
        return Config(
            {key: value for key, value in first.items() if all(key in each and is_same(each[key], value) for each in others)}
        ).asdict()

    def values(self, name: str) -> list[float]:
        return [_to_float(run.metrics[name]) for run in self.finished if name in run.metrics]

    def mean(self, name: str) -> float | None:
        values = self.values(name)
        return sum(values) / len(values) if values else None

    def std(self, name: str) -> float | None:
        """Return the sample standard deviation, or None for fewer than two values."""
        values, mean = self.values(name), self.mean(name)
        if mean is None or len(values) < 2:
            return None
        return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))

    def describe_metric(self, name: str) -> str:
        """Return `mean ± std`, or a single value, with the number of values if some runs do not have the metric."""
        mean, std, num = self.mean(name), self.std(name), len(self.values(name))
        if mean is None:
            return ""
        return (f"{mean:.4g}" if std is None else f"{mean:.4g} ± {std:.2g}") + (f" (n={num})" if num < len(self.finished) else "")

    def describe_count(self) -> str:
        num_finished, num_runs = len(self.finished), len(self.runs)
        return str(num_runs) if num_finished == num_runs else f"{num_finished} of {num_runs}"

    def describe_epochs(self) -> str:
        """Return the number of epochs of the finished runs, or a range such as `3-30` if they differ."""
        epochs = sorted({run.epoch for run in self.finished if run.epoch is not None})
        return "-" if not epochs else str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}-{epochs[-1]}"

    def to_json(self) -> dict[str, Any]:
        names = sorted({name for run in self.finished for name in run.metrics})
        return {
            "config": self.config,
            "keys": [run.key for run in self.runs],
            "n": len(self.finished),
            "epochs": {run.key: run.epoch for run in self.runs},
            "states": {run.key: run.state for run in self.runs},
            "metrics": {name: {"mean": self.mean(name), "std": self.std(name), "n": len(self.values(name))} for name in names},
        }


def group_replicates(table: RunTable) -> list[Group]:
    """Group runs that differ only in their seed, in the order of their first runs.

    Seeds are keys that end in `seed` and `Replicate` fields. If several runs have the same seed, only one of
    them is used: the first that is finished. Damaged configs are left out.
    """
    from trainmaster.store.index import summary_at

    groups: dict[str, dict[str, int]] = {}
    states = table.fact("state")
    for row, (name, replicate) in enumerate(zip(table.fact("group"), table.fact("replicate"), strict=True)):
        if name is not None:
            group = groups.setdefault(name, {})
            if replicate not in group or (states[group[replicate]] != "finished" and states[row] == "finished"):
                group[replicate] = row
    return [Group([summary_at(table, row) for row in group.values()]) for group in groups.values()]


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer may be larger than any float
        return math.inf if value > 0 else -math.inf
