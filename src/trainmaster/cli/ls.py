"""`trainmaster ls`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.options import Json, StoreArgument, StoreOption, WhereOption

if TYPE_CHECKING:
    from trainmaster.cli.table import Column
    from trainmaster.cli.terminal import Terminal
    from trainmaster.store import Store
    from trainmaster.store.summary import Summary

STALLED = 300.0
"""After how many seconds without progress a run that is held is said to make none."""
_STYLES = {
    "running": "live",
    "held?": "live",
    "finished": "good",
    "failed": "bad",
    "damaged": "bad",
    "killed": "warn",
    "interrupted": "warn",
    "stopped": "warn",
    "new": "dim",
}
_MAX_METRICS = 3
_MAX_KEYS = 8


def command(
    store_dir: StoreArgument = None,
    store: StoreOption = None,
    where: WhereOption = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="By a metric, a key of the config, `epoch`, `time` or `key`; `-NAME` is descending.", show_default=False
        ),
    ] = None,
    is_reversed: Annotated[bool, typer.Option("--reverse", help="In the opposite order.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Show so many at most; 0 shows all.")] = 20,
    tag: Annotated[str | None, typer.Option(metavar="LABEL", help="Only runs with this label.", show_default=False)] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only runs in this state: finished, failed, running, ...", show_default=False)
    ] = None,
    is_json: Json = False,
) -> None:
    """List the runs of a store.

    The one that was started last comes first. Conditions know the keys of configs, metrics, `state`, `epoch`, `tag` and `key`; the last
    part of a metric's name is enough. They have =, !=, <, <=, >, >=, ~ (contains), in (a, b), and, or, not and parentheses.

    \b
    Examples:
      trainmaster ls
      trainmaster ls --where 'lr<0.01 and arch=ResNet18' --sort -accuracy
      trainmaster ls --state failed --limit 0 --json
    """
    from trainmaster.cli.opening import found_store, say_empty
    from trainmaster.cli.strict_json import print_json, run_as_json
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.store.summary import STATES
    from trainmaster.store.tags import check_label
    from trainmaster.store.where import parse_where

    if state is not None and state not in STATES:
        raise _wrong_state(state)
    condition = parse_where(where) if where is not None else None
    label = check_label(tag) if tag is not None else None
    found = found_store(store, store_dir)
    if found is None or next(iter(found.configs), None) is None:
        say_empty(store, store_dir)
        if is_json:
            print_json([])
        return
    from trainmaster.cli.patience import told
    from trainmaster.store.selection import select
    from trainmaster.store.selection import sort as sort_keys
    from trainmaster.store.summary import newest_first

    keys = newest_first(found)
    if condition is not None:
        chosen = {*select(found, condition, told)}
        keys = [key for key in keys if key in chosen]
    if label is not None:
        labelled = {key for key, labels in found.tags.all().items() if label in labels}
        keys = [key for key in keys if key in labelled]
    if sort is not None:
        keys = sort_keys(found, keys, sort.removeprefix("-"), sort.startswith("-") != is_reversed, told)
    elif is_reversed:
        keys.reverse()
    runs, more = _page(found, keys, limit, state)
    if is_json:
        print_json([run_as_json(run) for run in runs])
        return
    terminal = the_terminal()
    for line in _lines(runs, terminal):
        print(line)
    if not runs:
        print("no run is like that")
    elif more:
        print(terminal.paint(f"{more}: --limit 0 shows all", "dim"))


def _page(store: Store, keys: list[str], limit: int, state: str | None) -> tuple[list[Summary], str]:
    """The summaries of the first runs, and what is said of the others; no more are read than it takes."""
    from trainmaster.cli.patience import told
    from trainmaster.errors import UnknownRunError
    from trainmaster.store.summary import summarize

    runs: list[Summary] = []
    for number, key in enumerate(told(keys)):
        if limit and len(runs) == limit:
            return runs, f"... and {len(keys) - number:,} more" if state is None else "... there may be more"
        try:
            run = summarize(store, key)
        except UnknownRunError:  # removed meanwhile
            continue
        if state is None or run.state == state:
            runs.append(run)
    return runs, ""


def _lines(runs: list[Summary], terminal: Terminal) -> list[str]:
    from trainmaster.cli.table import Cell, Column, table
    from trainmaster.cli.words import age
    from trainmaster.store.printable import printable

    if not runs:
        return []
    columns = [
        Column("KEY", [Cell(run.key, "bold") for run in runs]),
        Column("STATE", [Cell(_state(run), _STYLES[run.state]) for run in runs]),
        Column("EPOCH", [Cell(_epoch(run)) for run in runs], is_number=True),
        Column("AGE", [Cell(age(run.progressed or run.changed), "dim") for run in runs], is_number=True),
    ]
    if any(run.tags for run in runs):
        columns.append(Column("TAGS", [Cell(",".join(run.tags)) for run in runs]))
    metrics, config = _metric_columns(runs, terminal), _config_columns(runs)
    columns += [*metrics[:2], *config[:3], *metrics[2:], *config[3:]]  # what comes late is left out on a narrow terminal
    lines, left_out = table(columns, terminal, num_fixed=2)
    if left_out:
        lines.append(terminal.paint(printable(f"too narrow for: {', '.join(left_out)}"), "dim"))
    return lines


def _state(run: Summary) -> str:
    """The state, and that a run stands still, if it does (L07)."""
    from trainmaster.cli.words import duration

    still = time.time() - run.progressed if run.progressed is not None else 0.0
    return f"{run.state}, no progress {duration(still)}" if still >= STALLED else run.state


def _epoch(run: Summary) -> str:
    if run.epoch is None:
        return "-"
    return f"{run.epoch}/{run.num_epochs}" if run.num_epochs else str(run.epoch)


def _metric_columns(runs: list[Summary], terminal: Terminal) -> list[Column]:
    """The metrics that most runs have; the one that decides which is best comes first."""
    from trainmaster.cli.table import Cell, Column
    from trainmaster.cli.words import short

    counts: dict[str, int] = {}
    for run in runs:
        for name, value in run.metrics.items():
            counts[name] = counts.get(name, 0) + (value == value)
        decisive = str((run.best or {}).get("metric"))
        if decisive in run.metrics:
            counts[decisive] += len(runs)
    names = sorted(counts, key=lambda name: -counts[name])[:_MAX_METRICS]
    titles = {name: _title(name, counts) if terminal.is_one else name for name in names}
    return [
        Column(titles[name], [Cell(short(run.metrics[name]) if name in run.metrics else "") for run in runs], is_number=True)
        for name in names
    ]


def _title(name: str, known: Mapping[str, Any]) -> str:
    """The last part of a metric's name, where that is enough."""
    last = name.rpartition("/")[2]
    return last if last and sum(each.rpartition("/")[2] == last for each in known) == 1 else name


def _config_columns(runs: list[Summary]) -> list[Column]:
    """The keys of the config whose values differ between the runs."""
    from trainmaster.cli.table import Cell, Column
    from trainmaster.cli.words import short
    from trainmaster.config.plain import same
    from trainmaster.store.summary import flat

    configs = [dict(flat(run.config)) for run in runs]
    known = [config for config in configs if config]
    names = {name: sum(name in each for each in known) for config in known for name in config}
    varying = [name for name in names if not all(name in config and same(config[name], known[0].get(name)) for config in known)]
    common = sorted(varying, key=lambda name: -names[name])[:_MAX_KEYS]
    return [Column(name, [Cell(short(config[name]) if name in config else "") for config in configs]) for name in common]


def _wrong_state(state: str) -> Exception:
    from trainmaster.errors import SettingError, did_you_mean
    from trainmaster.store.summary import STATES

    return SettingError(f"`{state}` is no state of a run", hint=did_you_mean(state, STATES) or None, known=", ".join(STATES))
