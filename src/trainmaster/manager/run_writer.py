"""`RunWriter`: the writer that a loop uses when a manager trains it.

Every value of a metric is written to the run's event log. The last value is also kept for the run's preview.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainmaster.config.masking import Mask
from trainmaster.loop.loggers import Logger, Loggers
from trainmaster.loop.loggers import Row as Logged
from trainmaster.loop.writer import Writer, flush_of
from trainmaster.store.events import RowsByName, rows_by_name
from trainmaster.store.metric_names import checked_metric_name

Row = dict[str, Any]


class RunWriter:
    """Writes the values recorded by a loop to an event log.

    A row that contains a number has the fields `"tag"`, `"value"`, `"step"` and `"time"`. If the unit of the step is known, the
    field `"over"` contains it.

    The row of a loss at the end of an epoch also has the field `"position"`. It contains the number of epochs so far, the
    number of updates so far and, if known, the numbers of batches and samples in the epoch. A curve can be plotted against any of these.

    The rows of an evaluation are written only when it is complete, so an evaluation that is stopped leaves no rows. If an
    evaluation runs inside another one, its rows are written together with those of the outer evaluation. Before an attempt
    starts and after it ends, rows are kept only in memory, so evaluating a finished run does not change its records.
    """

    def __init__(self, loggers: Loggers | None = None) -> None:
        self._append: Callable[[Row], None] | None = None
        self._read: Callable[[], Iterable[Row]] = tuple
        self._history: RowsByName | None = {}
        """The value of `history`, or None if it has not been read from the log yet."""
        self._loggers = Loggers() if loggers is None else loggers
        self.latest: dict[str, Any] = {}
        """The last value of each tag."""
        self._held: list[list[Row]] = []
        """The rows of each open evaluation, the innermost last."""
        self._is_muted = False
        self._mask = Mask()
        self._position: Callable[[], dict[str, int] | None] = lambda: None

    def hide(self, mask: Mask) -> None:
        """Mask secrets in logged text from now on. Numbers and their names are not checked."""
        self._mask = mask

    def locate(self, position: Callable[[], dict[str, int] | None]) -> None:
        """Set the function that computes the `"position"` of a loss. In the middle of an epoch, the function returns None."""
        self._position = position

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        self._add(tag, scalar_value, global_step)

    def add_number(self, tag: str, value: Any, x: float | None, over: str) -> None:
        """Write a number. `over` is the unit of `x`: epochs, updates, batches or samples."""
        position = self._position() if over == "epoch" and tag.endswith("/loss") else None
        self._add(tag, value, x, over=over, **({} if position is None else {"position": position}))

    def _add(self, tag: str, value: Any, step: float | None, **facts: Any) -> None:
        number = float(value.detach() if hasattr(value, "detach") else value)
        self._write({"tag": str(tag), "value": number, "step": step, **facts, "time": time.time()})

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self._write({"tag": str(tag), "text": self._mask(str(text_string)), "step": global_step, "time": time.time()})

    def last(self, tag: str) -> float | None:
        """Return the last number written with a tag, or None if there is none. Evaluations that are still running are included."""
        held = [row["value"] for row in self._held_rows() if row["tag"] == tag and "value" in row]
        return held[-1] if held else self.latest.get(tag)

    def names(self) -> list[str]:
        """Return the names of all numbers written so far, including those of evaluations that are still running."""
        return [*{**self.latest, **{row["tag"]: None for row in self._held_rows() if "value" in row}}]

    @property
    def history(self) -> RowsByName:
        """All rows of the run, including those of evaluations that are still running. The log is read on first use."""
        if self._history is None:
            self._history = rows_by_name([*self._read(), *self._held_rows()])
        return self._history

    def restore(self, rows: Callable[[], Iterable[Row]], latest: Mapping[str, Any]) -> None:
        """Take over the rows of an existing run. `rows` is a function that reads its log; `latest` contains the last value of each tag."""
        self._read, self._history, self.latest = rows, None, dict(latest)

    def append_to(self, append: Callable[[Row], None], rows: Callable[[], Iterable[Row]]) -> None:
        """Append new rows to a log from now on, after sending the existing rows to all attached loggers. `rows` reads the log."""
        self._append, self._read, self._history = append, rows, None
        if self._loggers:
            for row in self._recorded():
                self._loggers.send(*row)

    def copy_to(self, writer: Writer) -> None:
        """Also write each new row to `writer`, the writer that `make_loop` set on the loop."""

        def copy(tag: str, value: float | str, step: int | None) -> None:
            if isinstance(value, str):
                writer.add_text(tag, value, step)
            else:
                writer.add_scalar(tag, value, step)

        copy.__qualname__ = type(writer).__qualname__  # used in warnings
        self._loggers.attach(copy, (), flush_of(writer))

    def detach(self) -> None:
        """Stop appending to the log. This is called when the attempt has ended."""
        self._append = None

    def flush(self) -> None:
        """Flush the writer that `make_loop` set on the loop.

        The event log needs no flush, because saving a checkpoint also writes all earlier rows to disk.
        """
        self._loggers.flush()

    def mirror(self, to: Logger) -> Callable[[], None]:
        """Call `to` with all rows so far, and then with each new row.

        Returns a function that detaches `to`. See `Logger`.
        """
        return self._loggers.attach(to, self._recorded())

    def mute(self, is_muted: bool) -> None:
        """Drop all new rows while `is_muted` is True. After a resume, hooks would otherwise record some rows a second time."""
        self._is_muted = is_muted

    def hold(self) -> None:
        """Hold rows back until the matching `let_go`."""
        self._held.append([])

    def let_go(self, is_complete: bool) -> None:
        """Write the rows since the matching `hold`, or drop them if the evaluation is not complete.

        Inside an outer `hold`, the rows are not written yet. They are added to the rows of the outer `hold`.
        """
        rows = self._held.pop()
        if not is_complete:
            self._forget(rows)
        elif self._held:
            self._held[-1] += rows
        else:
            if self._append is not None:
                for row in rows:  # append all rows first, because a logger may read the history
                    self._append(row)
            for row in rows:
                self._send(row)

    def _write(self, row: Row) -> None:
        checked_metric_name(row["tag"])
        if self._is_muted:
            return
        if self._append is None:
            _ = self.history  # load the history, because it will hold the only copy of this row
        elif not self._held:
            self._append(row)
        if self._history is not None:
            self._history.setdefault(row["tag"], []).append((row["step"], row["value"] if "value" in row else row["text"]))
        if self._held:
            self._held[-1].append(row)
        else:
            self._send(row)

    def _send(self, row: Row) -> None:
        if "value" in row:
            self.latest[row["tag"]] = row["value"]
        self._loggers.send(row["tag"], row["value"] if "value" in row else row["text"], row["step"])

    def _forget(self, rows: list[Row]) -> None:
        """Remove `rows` from the history. They must be the most recent rows."""
        for row in rows if self._history is not None else ():
            self.history[row["tag"]].pop()
            if not self.history[row["tag"]]:
                del self.history[row["tag"]]

    def _held_rows(self) -> Iterator[Row]:
        return (row for rows in self._held for row in rows)

    def _recorded(self) -> list[Logged]:
        """Return the rows to send to a logger. The rows of an evaluation that is still running are sent later."""
        held = Counter(row["tag"] for row in self._held_rows())
        return [(tag, value, step) for tag, rows in self.history.items() for step, value in rows[: len(rows) - held[tag]]]
