"""The command `trainmaster ls`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.completion import complete_sort, complete_state
from trainmaster.cli.console import Column, is_terminal, print_json, print_line, print_table, report_progress
from trainmaster.cli.formatting import format_age, format_duration, format_short, run_to_json
from trainmaster.cli.open_store import find_store, print_no_runs
from trainmaster.cli.options import Json, StoreArgument, StoreOption, WhereOption
from trainmaster.errors import SettingError, UnknownRunError, did_you_mean
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.analysis.unfinished_runs import RunForecasts
    from trainmaster.cli.replicates import Group
    from trainmaster.store import Store
    from trainmaster.store.run_table import RunTable
    from trainmaster.store.summary import Summary

STALLED = 300.0
"""`ls` reports a running run as stalled after this many seconds without progress."""
_STYLES = {
    "running": "cyan",
    "held?": "cyan",
    "finished": "green",
    "failed": "red",
    "damaged": "red",
    "killed": "yellow",
    "interrupted": "yellow",
    "stopped": "yellow",
    "new": "dim",
}
_MAX_METRICS = 3
_MAX_CONFIG_KEYS = 8
_FIRST_METRIC, _FORECAST, _CONFIG, _EPOCH, _TIME, _TAGS, _AGE, _METRICS = 1, 1, 2, 20, 30, 31, 32, 40
"""Ranks of columns. On a narrow terminal, columns with the highest rank are dropped first."""


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    where: WhereOption = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Sort by a metric, a config key, `epoch`, `time` or `key`; -NAME sorts in descending order.",
            autocompletion=complete_sort,
        ),
    ] = None,
    is_reversed: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Show at most N rows; 0 shows all.")] = 20,
    tag: Annotated[str | None, typer.Option(metavar="LABEL", help="Only runs with this label.")] = None,
    search: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this search.")] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only runs in this state: finished, failed, running, ...", autocompletion=complete_state),
    ] = None,
    is_grouped: Annotated[
        bool, typer.Option("--group", help="One row for all runs that differ only in their seed: mean ± std of the finished ones.")
    ] = False,
    is_forecast: Annotated[
        bool, typer.Option("--forecast", help="Forecast the final metric of unfinished runs from the store's finished ones.")
    ] = False,
    is_json: Json = False,
) -> None:
    """List the runs in a store.

    The most recently started run comes first. Filters compare config keys, metrics, `state`, `epoch`, `tag` and `key` with =, !=, <, <=,
    >, >=, ~ (contains) and in (a, b), combined with and, or, not and parentheses. You can shorten the name of a metric to an unambiguous
    ending: `loss` for `valid/loss`.

    \b
    Examples:
      trainmaster ls
      trainmaster ls --where 'lr<0.01 and arch=ResNet18' --sort -accuracy
      trainmaster ls --state failed --limit 0 --json
      trainmaster ls --group --sort valid/loss
      trainmaster ls --state running --forecast
    """
    from trainmaster.cli.replicates import group_replicates
    from trainmaster.store.query import parse_where
    from trainmaster.store.summary import STATES
    from trainmaster.store.tags import check_label

    if state is not None and state not in STATES:
        raise SettingError(f"`{state}` is not a state of a run", known=", ".join(STATES), hint=did_you_mean(state, STATES) or None)
    if is_grouped and is_forecast:
        raise SettingError("`--group` and `--forecast` cannot be combined", hint="a forecast is for a single run")
    query = parse_where(where) if where is not None else None
    label = check_label(tag) if tag is not None else None
    found = find_store(store, store_dir)
    if found is None or next(iter(found.configs), None) is None:
        print_no_runs(store, store_dir)
        if is_json:
            print_json([])
        return
    keys = _select_keys(found, query, label, search, sort, is_reversed)
    if is_grouped:
        groups = group_replicates(_read_table(found, keys, state))
        metric = _find_metric(groups, sort)
        is_descending = (sort or "").startswith("-") != is_reversed
        groups = _sort_groups(groups, metric, is_descending)
        shown = groups[:limit] if limit else groups
        if is_json:
            print_json([group.to_json() for group in shown])
        else:
            _print_groups(groups, len(shown), metric)
            _print_notes(groups, len(shown), metric, is_descending)
        return
    runs, rest = _read_runs(found, keys, limit, state)
    forecasts = _forecast(found, runs) if is_forecast else None
    if is_json:
        more = [forecasts.to_json(run.key) if forecasts else {} for run in runs]
        print_json([run_to_json(run) | each for run, each in zip(runs, more, strict=True)])
    else:
        _print_runs(runs, rest, forecasts)


def _select_keys(store: Store, query: Any, label: str | None, search: str | None, sort: str | None, is_reversed: bool) -> list[str]:
    from trainmaster.store import run_query
    from trainmaster.store.summary import newest_first

    keys = newest_first(store)
    if query is not None:
        selected = {*run_query.select(store, query, report_progress)}
        keys = [key for key in keys if key in selected]
    if label is not None:
        labels = store.tags.all()
        keys = [key for key in keys if label in labels.get(key, ())]
    if search is not None:
        from trainmaster.sweep.search_records import find_search

        searched = {key for trial in find_search(store, search).trials() for key in trial.keys}
        keys = [key for key in keys if key in searched]
    if sort is not None:
        return run_query.sort(store, keys, sort.removeprefix("-"), sort.startswith("-") != is_reversed, report_progress)
    return keys[::-1] if is_reversed else keys


def _read_table(store: Store, keys: list[str], state: str | None) -> RunTable:
    """Return the runs whose state is `state` (or all runs if `state` is None), in the order of `keys`."""
    table = store.index.runs(keys, report_progress)
    rows = {key: row for row, (key, each) in enumerate(zip(table.keys, table.fact("state"), strict=True)) if state in (None, each)}
    return table.take([rows[key] for key in keys if key in rows])


def _read_runs(store: Store, keys: list[str], limit: int, state: str | None) -> tuple[list[Summary], str]:
    """Return the first `limit` runs whose state is `state` (any state if it is None), and a text such as "... and 5 more".

    With a limit and without a state, only the runs that will be shown are read.
    """
    from trainmaster.store.index import summary_at
    from trainmaster.store.summary import summarize

    if limit and state is None:
        runs: list[Summary] = []
        for number, key in enumerate(keys):
            if len(runs) == limit:
                return runs, f"... and {len(keys) - number:,} more"
            with contextlib.suppress(UnknownRunError):  # the run has been removed
                runs.append(summarize(store, key))
        return runs, ""
    table = _read_table(store, keys, state)
    num_shown = min(limit, len(table)) if limit else len(table)
    runs = [summary_at(table, row, store.tags[table.keys[row]]) for row in range(num_shown)]
    return runs, f"... and {len(table) - num_shown:,} more" if num_shown < len(table) else ""


def _forecast(store: Store, runs: list[Summary]) -> RunForecasts | None:
    """Return the forecasts for the first metric that the table shows, or None if no run has a metric."""
    from trainmaster.analysis.unfinished_runs import RunForecasts, forecast_runs

    metrics = _choose_metrics(runs)
    if not metrics:
        return None
    table = store.index.runs(progress=report_progress)
    return RunForecasts(metrics[0], forecast_runs(store, table, metrics[0], {run.key for run in runs}))


def _print_runs(runs: list[Summary], rest: str, forecasts: RunForecasts | None = None) -> None:
    if not runs:
        print_line("no run matches")
        return
    metrics = _choose_metrics(runs)
    columns = [
        Column("KEY", [run.key for run in runs], style="bold"),
        Column("STATE", [_describe_state(run) for run in runs], style=[_STYLES[run.state] for run in runs]),
        Column("EPOCH", [_describe_epoch(run) for run in runs], is_number=True, rank=_EPOCH),
        Column("TIME", [format_duration(run.duration) for run in runs], is_number=True, rank=_TIME),
        Column("AGE", [format_age(run.progressed or run.changed) for run in runs], is_number=True, rank=_AGE, style="dim"),
    ]
    if any(run.tags for run in runs):
        columns.append(Column("TAGS", [",".join(run.tags) for run in runs], rank=_TAGS))
    columns += _make_config_columns([run.config for run in runs])
    values = [{name: format_short(run.metrics[name]) for name in metrics if name in run.metrics} for run in runs]
    columns += _make_metric_columns(metrics, values, runs)
    if forecasts is not None:
        columns.append(Column("FORECAST", [forecasts.describe(run.key) for run in runs], is_number=True, rank=_FORECAST))
    print_table(columns)
    for line in forecasts.notes if forecasts is not None else ():
        print_line(line, "dim")
    if rest:
        print_line(f"{rest}: --limit 0 shows all", "dim")


def _describe_state(run: Summary) -> str:
    idle = time.time() - run.progressed if run.progressed is not None else 0.0
    return f"{run.state}, no progress {format_duration(idle, num_units=1)}" if idle >= STALLED else run.state


def _describe_epoch(run: Summary) -> str:
    if run.epoch is None:
        return "-"
    return f"{run.epoch}/{run.num_epochs}" if run.num_epochs else str(run.epoch)


def _sort_groups(groups: list[Group], metric: str | None, is_descending: bool) -> list[Group]:
    """Sort groups by the mean of a metric; groups without a mean come last. If `metric` is None, the order does not change."""

    def sort_key(group: Group) -> tuple[bool, float]:
        mean = group.stats(metric).mean if metric is not None else None
        return mean is None or mean != mean, (mean or 0.0) * (-1 if is_descending else 1)

    return sorted(groups, key=sort_key)


def _find_metric(groups: list[Group], sort: str | None) -> str | None:
    """Return the metric that `--sort` refers to, or None if it refers to no metric or to several."""
    from trainmaster.store.metric_names import matching_metrics

    names = {name for group in groups for run in group.runs for name in run.metrics}
    matching = matching_metrics(sort.removeprefix("-"), names) if sort else []
    return matching[0] if len(matching) == 1 else None


def _print_groups(groups: list[Group], num_shown: int, metric: str | None) -> None:
    """Print the first groups. The columns are chosen from all groups, so that they do not depend on the limit."""
    if not groups:
        print_line("no run matches")
        return
    chosen = _choose_metrics([run for group in groups for run in group.finished])
    metrics = [*dict.fromkeys([*([metric] if metric else []), *chosen])][:_MAX_METRICS]
    columns = [
        Column("RUNS", [group.describe_count() for group in groups], is_number=True),
        Column("EPOCH", [group.describe_epochs() for group in groups], is_number=True, rank=_EPOCH),
        *_make_config_columns([group.config for group in groups]),
    ]
    values = [{name: group.describe_metric(name) for name in metrics} for group in groups]
    columns += _make_metric_columns(metrics, values, [run for group in groups for run in group.runs])
    print_table([column._replace(cells=column.cells[:num_shown]) for column in columns])


def _print_notes(groups: list[Group], num_shown: int, metric: str | None, is_descending: bool) -> None:
    """Print how many groups are not shown. If the best group comes first but has only one run, also print a warning."""
    from trainmaster.store.metric_names import better_of

    is_best_first = metric is not None and better_of(metric) == ("max" if is_descending else "min")
    stats = [group.stats(metric) for group in groups] if metric is not None and is_best_first else []
    num_lucky = next((at for at, (mean, _, num) in enumerate(stats) if num > 1 and mean == mean), 0)
    if num_lucky:
        who = f"the first {num_lucky} settings have a single run each" if num_lucky > 1 else "the first setting has a single run"
        print_line(f"{who}, which may have had a lucky seed; the first setting with several runs is in row {num_lucky + 1}", "dim")
    if num_shown < len(groups):
        print_line(f"... and {counted(len(groups) - num_shown, 'more group')}: --limit 0 shows all", "dim")


def _choose_metrics(runs: Sequence[Summary]) -> list[str]:
    """Return the metrics that most runs have. The monitored metric comes first, then losses."""
    counts: dict[str, int] = {}
    for run in runs:
        for name, value in run.metrics.items():
            counts[name] = counts.get(name, 0) + (value == value)
        monitored = str((run.best or {}).get("metric"))
        if monitored in run.metrics:
            counts[monitored] += len(runs)
    return sorted(counts, key=lambda name: (-counts[name], not name.endswith("/loss")))[:_MAX_METRICS]


def _make_metric_columns(names: Sequence[str], rows: Sequence[Mapping[str, str]], runs: Sequence[Summary]) -> list[Column]:
    titles = _make_titles(names, "/", {name for run in runs for name in run.metrics})
    return [
        Column(titles[name], [row.get(name, "") for row in rows], is_number=True, rank=_METRICS + number if number else _FIRST_METRIC)
        for number, name in enumerate(names)
    ]


def _make_config_columns(configs: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each config key whose values differ. The most common keys come first."""
    from trainmaster.config.varying import VaryingKeys, short_values
    from trainmaster.store.summary import flat

    flats = [flat(config) for config in configs]
    names = VaryingKeys(each for each in flats if each).names
    names = sorted(names, key=lambda name: -sum(name in each for each in flats))[:_MAX_CONFIG_KEYS]
    titles = _make_titles(names, ".", {name for each in flats for name in each})
    columns = []
    for number, name in enumerate(names):
        values = [each[name] for each in flats if name in each]
        texts = iter(short_values(values))
        cells = [next(texts) if name in each else "" for each in flats]
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        columns.append(Column(titles[name], cells, is_number, rank=_CONFIG + number))
    return columns


def _make_titles(names: Sequence[str], separator: str, known: set[str]) -> Mapping[str, str]:
    """Return column titles. On a terminal, names are shortened to an ending that no other known name has."""
    from trainmaster.config.varying import short_names

    return short_names(names, separator, known) if is_terminal() else dict(zip(names, names, strict=True))
