"""Groups replicates, which are runs that differ only in their seed, and computes means and standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainmaster.config import Config
from trainmaster.config.identity import without_seeds
from trainmaster.config.to_plain import is_same
from trainmaster.store.index import summary_at
from trainmaster.store.replicates import Stats, group_rows, stats_of
from trainmaster.store.run_table import RunTable
from trainmaster.store.summary import Summary, flat


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
        first, *others = [flat(without_seeds(run.config)) for run in self.runs]
        return Config(
            {key: value for key, value in first.items() if all(key in each and is_same(each[key], value) for each in others)}
        ).asdict()

    def stats(self, name: str) -> Stats:
        return stats_of(run.metrics.get(name) for run in self.finished)

    def describe_metric(self, name: str) -> str:
        """Return `mean ± std`, or the value if there is only one. If some runs do not have the metric, add the number of values."""
        mean, std, num = self.stats(name)
        if mean is None:
            return ""
        return (f"{mean:.4g}" if std is None else f"{mean:.4g} ± {std:.2g}") + (f" (n={num})" if num < len(self.finished) else "")

    def describe_count(self) -> str:
        num_finished, num_runs = len(self.finished), len(self.runs)
        return str(num_runs) if num_finished == num_runs else f"{num_finished} of {num_runs}"

    def describe_epochs(self) -> str:
        """Return the number of epochs of the finished runs, or a range such as `3-30` if the runs have different numbers of epochs."""
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
            "metrics": {name: dict(zip(("mean", "std", "n"), self.stats(name), strict=True)) for name in names},
        }


def group_replicates(table: RunTable) -> list[Group]:
    """Group the runs that differ only in their seed. The groups are in the order of their first runs."""
    return [Group([summary_at(table, row) for row in rows]) for rows in group_rows(table, range(len(table)))]
