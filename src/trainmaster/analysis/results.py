"""`Results`: the runs in a store as columns, to filter, group, compare and draw."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainmaster.analysis.columns import Array, Floats, array_of, floats_of
from trainmaster.analysis.compare import Comparison, compare
from trainmaster.analysis.frames import import_pandas, steps_frame
from trainmaster.analysis.groups import Groups, has_direction, metric_counts, rank_groups, varies
from trainmaster.analysis.importance import Importance, importance
from trainmaster.analysis.plots import curves, parallel, plot
from trainmaster.analysis.result_table import group_table
from trainmaster.analysis.source import open_source, trial_folder
from trainmaster.analysis.table_text import results_html, to_latex
from trainmaster.analysis.trials import is_range_by_key, trial_rows
from trainmaster.arguments import check_choice, check_int
from trainmaster.errors import MetricNameError, SettingError, StoreDamagedError, shown
from trainmaster.figures.drawing import Drawing
from trainmaster.store.index import Progress, summary_at
from trainmaster.store.metric_names import short_name
from trainmaster.store.monitored import RankedBy, ranked_by
from trainmaster.store.query import Where, parse_where
from trainmaster.store.run_query import Name, matching_rows, resolve_name
from trainmaster.store.run_table import MISSING, RunTable
from trainmaster.store.steps import Steps, read_steps
from trainmaster.store.summary import Summary
from trainmaster.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from trainmaster.dashboard.open_page import Page

Mode = Literal["min", "max"]
FACTS = ("state", "epoch", "step", "duration")
"""The properties of a run, besides its config and metrics, that are shown as columns."""
FINISHED = "finished"


class Results:
    """The finished runs in a store, as they were when this object was created.

    `source` is a store, the folder of a store, or a manager. `where` selects runs, as in `trainmaster ls --where`.
    Unless `where` has a condition on `state`, only finished runs are included, and `left_out` lists the others by
    state. `source` can also be a `ParallelConfig`. In that case, `experiment_dir` is the folder of a store, and the
    results are the trials of the config.

    ```python
    results = Results("runs", where="lr<0.01")
    results.df                      # one row per run
    results.groups()                # replicates, with mean and interval
    results["arch=ViT"].best()      # the best run with this value
    ```
    """

    def __init__(
        self,
        source: Any,
        experiment_dir: str | os.PathLike[str] | None = None,
        *,
        where: str | None = None,
        progress: Progress = iter,
    ) -> None:
        """`progress` is a function that takes the run keys and yields them one by one, for example to show a progress bar."""
        query = None if where is None else parse_where(where)
        self.store = open_source(source if experiment_dir is None else trial_folder(source, experiment_dir))
        self.attributes: Mapping[str, bool] | None = None
        """If the source is a `ParallelConfig`, maps each searched key to whether it is a range of numbers."""
        table = self.store.index.runs(None, progress)
        if experiment_dir is not None:
            self.attributes = is_range_by_key(source)
            table = table.take(trial_rows(table, source))
        self._set(table, self.store.tags.all(), query)

    def _set(self, table: RunTable, tags: Mapping[str, tuple[str, ...]], query: Where | None, has_state: bool = False) -> None:
        self._has_state = has_state or (query is not None and any(each.name == "state" for each in query.comparisons()))
        matching = table if query is None else table.take(matching_rows(table, query, tags))
        moments, keys = np.array([moment or 0.0 for moment in matching.fact("changed")]), np.array(matching.keys)
        self.all_runs, self.tags = matching.take(np.lexsort((keys, moments)).tolist()), tags
        """The runs in all states that meet the condition, oldest first."""
        states = self.all_runs.fact("state")
        is_in = [state == FINISHED or (self._has_state and state != "damaged") for state in states]
        self.table = self.all_runs.take([row for row, is_included in enumerate(is_in) if is_included])
        """The included runs as plain columns, oldest first."""
        self.left_out: dict[str, list[str]] = {}
        """The keys of the runs that are not included, by state."""
        for key, state, is_included in zip(self.all_runs.keys, states, is_in, strict=True):
            if not is_included:
                self.left_out.setdefault(str(state), []).append(key)

    def __getitem__(self, where: str) -> Results:
        """Return the runs that meet a condition: `results["lr<0.01 and arch=ViT"]`."""
        if not isinstance(where, str):
            raise SettingError(f"results are selected by a condition, not {shown(where)}", hint='results["lr<0.01 and arch=ViT"]')
        part = object.__new__(Results)
        part.store, part.attributes = self.store, self.attributes
        part._set(self.all_runs, self.tags, parse_where(where), self._has_state)
        return part

    # ---- runs

    @property
    def keys(self) -> list[str]:
        return self.table.keys

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Summary]:
        """Yield each run as an object with `key`, `config`, `metrics`, `state`, `epoch` and other attributes."""
        return (_summary(self, row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Results({self.store.root!r}: {self.describe()})"

    def describe(self) -> str:
        """Describe how many runs are included, and how many runs in each other state are left out."""
        others = ", ".join(f"{len(keys):,} {state}" for state, keys in sorted(self.left_out.items()))
        return counted(len(self), "run") + (f"; left out: {others}" if others else "")

    # ---- columns

    @cached_property
    def config(self) -> dict[str, Array]:
        """The values of each config key; see `array_of` for the types."""
        return {name: array_of(column) for name, column in self.table.config.items()}

    @cached_property
    def metrics(self) -> dict[str, Floats]:
        """The last value of each metric in each run, or NaN if the run has no value."""
        return {name: floats_of(column) for name, column in self.table.metrics.items()}

    @cached_property
    def columns(self) -> dict[str, Array]:
        """All columns: config values, metrics, and properties of the run such as `state` and `epoch`.

        If a config key has the same name as a metric, such as `lr`, the column of the metric is called `lr (metric)`.
        """
        columns: dict[str, Array] = dict(self.config)
        facts = {name: array_of(self.table.facts.get(name, [MISSING] * len(self))) for name in FACTS}
        for part, suffix in ((self.metrics, " (metric)"), (facts, " (run)")):
            columns |= {f"{name}{suffix}" if name in columns else name: values for name, values in part.items()}
        return columns

    @cached_property
    def varying(self) -> list[str]:
        """The config keys whose values differ between the runs, except for seeds."""
        return [name for name, column in self.table.config.items() if not name.endswith("seed") and varies(column)]

    @cached_property
    def seeds(self) -> list[int | None]:
        """The seed that each run used, or None if it is unknown."""
        recorded, computed = self.table.fact("seed"), self.table.fact("config_seed")
        return [one if one is not None else other for one, other in zip(recorded, computed, strict=True)]

    @cached_property
    def config_ids(self) -> list[str | None]:
        """An id for each run. All replicates of a config have the same id."""
        return self.table.fact("group")

    @cached_property
    def replicate_ids(self) -> list[str | None]:
        """An id for each run. Runs with the same config that used the same seed have the same id."""
        return self.table.fact("replicate")

    @property
    def df(self) -> pd.DataFrame:
        """A pandas DataFrame with one row per run, indexed by key."""
        pd = import_pandas()
        return pd.DataFrame(self.columns, index=pd.Index(self.keys, name="key"))

    def find(self, name: str) -> Name:
        """Return the config key or metric with this name. `name` is a full name or an unambiguous last part of one."""
        return resolve_name(name, self.table.config, self.table.metrics)

    def ranked_by(self, metric: str | None = None) -> RankedBy:
        """Return the full name of a metric (by default the one that the runs monitor) and whether larger values are better.

        If neither the runs nor the name of the metric show this, smaller values are ranked first.
        """
        _require_runs(self)
        counts, modes = metric_counts(self.table)
        if not counts:
            raise MetricNameError("none of these runs has a metric", hint="training records metrics with `writer.add_scalar`")
        return ranked_by(metric, counts, modes)

    # ---- comparisons

    def best(self, metric: str | None = None, mode: Mode | None = None) -> Summary:
        """Return the single run with the best last value of a metric.

        `mode` is "min" if smaller values are better, or "max". It is only needed if neither the runs nor the name of the metric show it.
        A run may be the best only because of its seed. To compare means over seeds instead, use `groups(min_runs=2)`.
        """
        name, is_greater_better = _directed(self, "best", metric, mode)
        values = self.metrics[name]
        if np.isnan(values).all():
            raise MetricNameError(f"no run has a number for `{short_name(name)}`", hint="all its values are NaN")
        return _summary(self, int(np.nanargmax(values) if is_greater_better else np.nanargmin(values)))

    def groups(
        self, by: str | Iterable[str] | None = None, metric: str | None = None, min_runs: int = 1, mode: Mode | None = None
    ) -> Groups:
        """Group runs that differ only in their seed, or that have the same values for the keys in `by`, and compute statistics of a metric.

        The best group comes first. If several runs with the same config used the same seed, only one of them is used. If
        `by` puts several configs into a group, the seeds of each config are averaged first, and `n` counts configs. A
        group that contains NaN has a NaN mean and comes last. Groups with fewer than `min_runs` runs are left out. Use
        `min_runs=2` to leave out groups with a single run, which may just have had a lucky seed. `mode` is the same as in `best`.
        """
        check_int("min_runs", min_runs, min=1)
        groups = rank_groups(self, by, _directed(self, "groups", metric, mode))
        kept = tuple(group for group in groups if len(group.rows) >= min_runs)
        if min_runs > 1 and not kept:
            found = f"the most is {max(len(group.rows) for group in groups)}"
            hint = "train the same configs with more seeds: `trainmaster sweep ... seed=0,1,2`"
            raise SettingError(f"no setting has {min_runs} runs with `{short_name(groups.metric)}`", found=found, hint=hint)
        return replace(groups, members=kept) if min_runs > 1 else groups

    def compare(self, a: str, b: str, on: str | None = None) -> Comparison:
        """Compare a metric between the runs that meet two conditions.

        For example, `compare("act=gelu", "act=relu", on="valid/accuracy")` returns the difference between the accuracies.
        Two runs form a pair if they have the same seed and their configs differ only in the keys that the conditions
        use. If there are no pairs, the means of the two sets of runs are compared.
        """
        return compare(self, a, b, on)

    def importance(self, metric: str | None = None) -> Importance:
        """Return the importance of each config key and of the seed for a metric, computed with Optuna's PED-ANOVA."""
        return importance(self, metric)

    # ---- curves

    def read_steps(
        self, metrics: str | Iterable[str] | None = None, rows: Iterable[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Steps]]]:
        """Yield the row of each run and its logged values by metric.

        Runs that have been removed or damaged since the results were read are skipped with a warning.
        """
        names = None if metrics is None else {*([metrics] if isinstance(metrics, str) else metrics)}
        for row in range(len(self)) if rows is None else rows:
            run = self.store.run(self.keys[row])
            try:
                yield row, read_steps(run, names)
            except (StoreDamagedError, FileNotFoundError) as error:
                why = error.rows.get("why", "") if isinstance(error, StoreDamagedError) else "it has been removed"
                warnings.warn(f"the log of run {run.key} cannot be read: {why}", stacklevel=3)

    def steps(self, metrics: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Return every logged value of some metrics (by default all) as a DataFrame indexed by key and step.

        The DataFrame also has all config columns. The column `over` is the unit of the steps, such as epochs or updates.
        This method reads the logs of all runs.
        """
        return steps_frame(self, metrics)

    # ---- figures

    def ui(self) -> Page:
        """Open the dashboard for the store of these results, below the notebook cell or in a new browser tab."""
        from trainmaster.dashboard.open_page import open_page

        return open_page(self.store)

    def plot(self, x: str, y: str | None = None) -> Drawing:
        """Plot a metric against a config key: a regression line with its 95 % band for numbers, or violins for categories."""
        return plot(self, x, y)

    def curves(self, metric: str | None = None, by: str | Iterable[str] | None = None) -> Drawing:
        """Plot the curves of a metric: the mean over the seeds of each group and its 95 % interval.

        `by="key"` plots one curve for each run.
        """
        return curves(self, metric, by)

    def parallel(self, metric: str | None = None) -> Drawing:
        """Plot parallel coordinates: each run is a line through its config values and its metric. The metric determines the color."""
        return parallel(self, metric)

    # ---- tables

    def to_latex(self, metrics: str | Iterable[str] | None = None, by: str | Iterable[str] | None = None) -> str:
        """Return a LaTeX table with the mean and standard deviation of metrics for each group. The table needs the package booktabs."""
        return to_latex(group_table(self, metrics, by))

    def _repr_html_(self) -> str:
        return results_html(self)


def _summary(results: Results, row: int) -> Summary:
    return summary_at(results.table, row, results.tags.get(results.keys[row], ()))


def _require_runs(results: Results) -> None:
    if not len(results):
        others = "; ".join(f"{len(keys):,} {state}, e.g. {keys[0]}" for state, keys in sorted(results.left_out.items()))
        hint = "a condition on `state` includes others: 'state in (finished, stopped)'" if others else "`trainmaster ls` lists all runs"
        raise SettingError("there is no finished run to analyze", where=results.store.root, found=others or "no run matches", hint=hint)


def _directed(results: Results, method: str, metric: str | None, mode: Mode | None) -> RankedBy:
    """Return a metric and its direction, which is `mode` if given. Raise an error if nothing says which values are better."""
    name, is_greater_better = results.ranked_by(metric)
    if mode is not None:
        check_choice("mode", mode, ("min", "max"), hint=f'{method}(mode="max") if larger values are better')
        return RankedBy(name, mode == "max")
    if not has_direction(results.table, name):
        raise SettingError(
            f"nothing says whether lower or higher is better for {short_name(name)!r}",
            hint=f'{method}(metric="{short_name(name)}", mode="max") if higher is better, else mode="min"; to record it with each run, set'
            " `monitor` and `mode` in the manager class, or in the loop's CheckpointSaver",
        )
    return RankedBy(name, is_greater_better)
