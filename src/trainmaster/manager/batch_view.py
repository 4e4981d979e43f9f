"""`BatchView` shows the progress of a batch; `best_lines` lists its best runs at the end."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.arguments import is_number
from trainmaster.config.declared_secrets import masked_config
from trainmaster.config.varying import VaryingKeys, short_names, short_values
from trainmaster.loop.progress import BAR_WIDTH, clock
from trainmaster.manager.console import short_number
from trainmaster.manager.executor import Report
from trainmaster.manager.job import Job
from trainmaster.manager.overview import Ranking
from trainmaster.store.summary import flat
from trainmaster.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from trainmaster.manager.batch import BatchResult

_MAX_RUNS = 12
_MAX_NAMES = 8
_INTERVAL = 30.0
"""Seconds between progress lines if the output is not a terminal and no run ends."""
NUM_BEST = 10
"""The maximum number of runs in the list of best runs at the end of a batch."""
_LIMITS = (60, 24, 12)
"""Widths of config values. The first one that makes the table fit the terminal is used."""
_UNLIMITED = 10_000


@dataclass
class _Row:
    """A run that is being trained."""

    config: Mapping[str, Any]
    share: float = 0.0
    first_share: float = 0.0
    """The fraction of the run that was done before this batch started it."""
    epoch: str = ""
    metric: tuple[str, float] | None = None


class BatchView:
    """Shows the progress of a batch: a live table on a terminal, otherwise a line whenever a run ends."""

    def __init__(
        self,
        total: int | None,
        print_line: Callable[[str], None],
        varying: VaryingKeys,
        result: BatchResult,
        running: Collection[str],
        console: Console | None = None,
        status: Callable[[], str] | None = None,
        read_metric: Callable[[str], tuple[str, float] | None] | None = None,
    ) -> None:
        from rich.console import Console

        self._total, self._print_line, self._varying, self._result, self._running = total, print_line, varying, result, running
        self._status, self._read_metric = status, read_metric
        self._console = console or Console()
        self._live: Live | None = None
        self._started = self._printed = time.monotonic()
        self._rows: dict[str, _Row] = {}
        self._num_trained = 0.0
        """The number of runs that this batch has trained. For a resumed run, only the fraction that was trained here is counted."""
        self._is_ending = False
        self._num_interrupted = 0
        """How many runs were stopped because the batch ended early. They are not finished, so they do not count as progress."""

    @property
    def is_live(self) -> bool:
        return self._console.is_terminal

    def __enter__(self) -> BatchView:
        if self.is_live:
            from rich.live import Live

            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the batch with an error
                live.stop()

    # ---- events

    def started(self, job: Job) -> None:
        config = values_of(job.config)
        self._varying.add(config)
        self._rows[job.key] = _Row(config)

    def progress(self, report: Report) -> None:
        row = self._rows.get(report.key)
        if row is None or report.kind != "progress":
            return
        if report.share is not None or report.num_epochs:
            row.share = report.share if report.share is not None else report.epoch / (report.num_epochs or 1)
            row.first_share = row.share if report.is_first else row.first_share
        row.epoch = f"{report.epoch}/{report.num_epochs}" if report.num_epochs else str(report.epoch)
        row.metric = report.metric or row.metric
        if self._live is None and time.monotonic() - self._printed >= _INTERVAL:
            self._print(f"[{self._position()}] {self._counts_and_eta()}")

    def ended(self, report: Report) -> None:
        row = self._rows.pop(report.key, None)
        if row is None:
            return
        if report.kind == "done":
            self._num_trained += 1.0 - row.first_share
        self._num_interrupted += report.kind == "stopped" and self._is_ending
        if self._live is None and report.kind in ("done", "failed", "stopped"):
            names = self._names()
            values = [f"{short}={short_values([row.config[name]])[0]}" for name, short in names.items() if name in row.config]
            found = row.metric if self._read_metric is None else self._read_metric(report.key)
            metric = [f"{found[0]}={short_number(found[1])}"] if found is not None and report.kind != "failed" else []
            self._print("  ".join([f"[{self._position()}] {report.kind} {report.key}", *values, *metric, f"({self._counts_and_eta()})"]))

    def ending(self) -> None:
        """Note that the batch is ending early. From now on, no remaining time is shown, and stopped runs count as interrupted."""
        self._is_ending = True

    # ---- text

    def eta(self) -> float | None:
        """Estimate the remaining time of the batch in seconds, or return None if it is unknown.

        Failed runs are ignored. There is no estimate until this batch has trained the equivalent of half a run, because
        until then, most of the elapsed time may have been spent on starting processes and waiting for other processes.
        """
        rows = [*self._rows.values()]
        num_trained = self._num_trained + sum(row.share - row.first_share for row in rows)
        if self._total is None or num_trained < 0.5:
            return None
        num_left = self._total - self._num_ended - sum(row.share for row in rows)
        return (time.monotonic() - self._started) / num_trained * max(0.0, num_left)

    @property
    def _num_ended(self) -> int:
        return self._result.num_ended - self._num_interrupted

    def _position(self) -> str:
        return f"{self._num_ended:,}" if self._total is None else f"{self._num_ended:,}/{self._total:,}"

    def _time_left(self) -> str:
        eta = self.eta()
        return "" if eta is None or self._is_ending or self._num_ended == self._total else f"{clock(eta)} left"

    def _counts(self) -> str:
        counts = {**self._result.counts(), "left": 0, "running": len(self._running)}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "done")

    def _counts_and_eta(self) -> str:
        return ", ".join(filter(None, [self._counts(), self._time_left()]))

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._print_line(text)

    def _names(self) -> dict[str, str]:
        return short_names(self._varying.names[:_MAX_NAMES], ".")

    # ---- the live view

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = dict([*self._rows.items()][: max(1, min(_MAX_RUNS, self._console.height - 5))])
        num_more = len(self._rows) - len(rows)
        share = None
        if self._total:
            share = (self._num_ended + sum(row.share for row in [*self._rows.values()])) / self._total
        head = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(1.0 if share is not None else None, share or 0.0, BAR_WIDTH)
        head.add_row("runs    ", bar, self._position(), self._time_left())
        lines: list[RenderableType] = [head, Text(self._counts(), "dim")]
        lines += [Text(printable(self._status()), "dim", overflow="ellipsis", no_wrap=True)] if self._status is not None else []
        lines += [self._table(rows)] if rows else []
        lines += [Text(f"... and {num_more:,} more", "dim")] if num_more > 0 else []
        return Group(*lines)

    def _table(self, rows: Mapping[str, _Row]) -> Table:
        from rich.progress_bar import ProgressBar

        metrics = {key: row.metric for key, row in rows.items() if row.metric is not None}
        names = {name for name, _ in metrics.values()}
        title = next(iter(names)) if len(names) == 1 else ""
        numbers = {key: f"{'' if title else f'{name} '}{short_number(value)}" for key, (name, value) in metrics.items()}
        columns = [
            Column("RUN", [*rows]),
            Column("", [ProgressBar(1.0, row.share, BAR_WIDTH) for row in rows.values()]),
            Column("EPOCH", [row.epoch or "-" for row in rows.values()], is_number=True),
            Column(title, [numbers.get(key, "") for key in rows], is_number=True),
        ]
        width = self._console.width
        return make_table(_with_values(columns, [row.config for row in rows.values()], self._names(), width), width)


def best_lines(ranking: Ranking, configs: Mapping[str, Mapping[str, Any]], varying: VaryingKeys, width: int | None) -> list[str]:
    """Return a table of the best runs in a batch, best first, as lines of at most `width` columns."""
    rows, width = ranking.rows[:NUM_BEST], width or _UNLIMITED
    names = short_names(varying.names[:_MAX_NAMES], ".")
    columns = [
        Column("RUN", [key for _, key in rows]),
        Column(ranking.metric, [short_number(value) for value, _ in rows], is_number=True),
    ]
    columns = _with_values(columns, [configs[key] for _, key in rows], names, width)
    more = f"the {len(rows)} best of {len(ranking.rows):,}" if len(ranking.rows) > len(rows) else "best runs"
    better = f"{'higher' if ranking.is_greater_better else 'lower'} is better"
    order = better if ranking.has_direction else "lowest first: nothing says whether lower or higher is better"
    return [f"{more} by their last {ranking.metric} ({order})", *table_lines(columns, width)]


def values_of(config: Any) -> dict[str, Any]:
    """Return the values of a config by dotted key, with `***` for its secrets."""
    return flat(masked_config(config))


class Column(NamedTuple):
    title: str
    cells: Sequence[str | ProgressBar]
    is_number: bool = False
    is_optional: bool = False
    """Whether to leave out the column if the table is too wide."""

    @property
    def min_width(self) -> int:
        from rich.cells import cell_len

        return max(cell_len(printable(each)) if isinstance(each, str) else BAR_WIDTH // 2 for each in [self.title, *self.cells])


def make_table(columns: Sequence[Column], width: int) -> Table:
    """Return a table without lines. If it is too wide, optional columns are left out from the right, except for the first one."""
    from rich.table import Table
    from rich.text import Text

    def text(cell: str) -> Text:
        return Text(printable(cell), no_wrap=True, overflow="ellipsis")

    optional = [each for each in columns if each.is_optional]
    while len(optional) > 1 and not _fits(columns, width):
        last = optional.pop()
        columns = [each for each in columns if each is not last]
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for each in columns:
        is_bar = not all(isinstance(cell, str) for cell in each.cells)  # rich may shorten a bar
        table.add_column(text(each.title), justify="right" if each.is_number else "left", no_wrap=not is_bar)
    for cells in zip(*(each.cells for each in columns), strict=True):
        table.add_row(*(text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def table_lines(columns: Sequence[Column], width: int) -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(make_table(columns, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def _fits(columns: Sequence[Column], width: int) -> bool:
    return sum(each.min_width + 2 for each in columns) - 2 <= width


def _with_values(columns: list[Column], configs: Sequence[Mapping[str, Any]], names: Mapping[str, str], width: int) -> list[Column]:
    """Insert the config values before the last column. They are shortened only if the table would be too wide."""
    for limit in _LIMITS:
        found = [*columns[:-1], *_value_columns(configs, names, limit), columns[-1]]
        if _fits(found, width):
            break
    return found


def _value_columns(configs: Sequence[Mapping[str, Any]], names: Mapping[str, str], limit: int) -> Iterator[Column]:
    """Yield a column for each config key that varies, with the short name of the key as its title."""
    for name, short in names.items():
        values = [config[name] for config in configs if name in config]
        texts = iter(short_values(values, limit))
        yield Column(short, [next(texts) if name in config else "" for config in configs], all(map(is_number, values)), True)
