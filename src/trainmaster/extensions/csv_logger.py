"""Writes training metrics to a CSV file."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from trainmaster.extensions.train_dir import mirrored_writer, required_path
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer, always
from trainmaster.store.files import LocalFiles

FILE = "metrics.csv"


class EpochRow(NamedTuple):
    """The last value of every metric in an epoch."""

    epoch_num: int
    step_num: int
    values: dict[str, float]


class CSVLogger(Observer):
    """Writes one CSV line per epoch: the epoch, the number of updates, and the last value of each metric.

    The file is `path`, or `metrics.csv` in the loop's `train_dir`. A metric that is logged for the first time becomes a
    new column. The line for an epoch is written after its evaluation. When a run resumes, lines
    that were written after the checkpoint are removed.
    """

    is_guarded = False

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._columns: list[str] = []
        self._rows: list[EpochRow] = []
        self._current: dict[str, float] = {}
        self._file: Path | None = None
        self._num_written: int | None = None
        """The number of metrics in the file, or None if the file has to be rewritten."""
        self._detach: Callable[[], None] | None = None
        self._has_failed = False

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._file = required_path(self.path, loop, FILE, "CSVLogger")
        self._num_written = None
        self._detach = mirrored_writer(writer, "CSVLogger").mirror(self._add)
        self._write(self._file)

    def pre_train_step_epoch(self, train_manager: TrainManager, epoch_num: int, step_num: int) -> None:
        if not train_manager.moment.batch:  # if training resumes in the middle of an epoch, this hook runs a second time
            self._end_row(epoch_num, step_num)

    def post_train(self, train_manager: TrainManager, epoch_num: int, step_num: int) -> None:
        if not train_manager.moment.batch:  # otherwise, a stop ended the epoch early, and its row is written when training continues
            self._end_row(epoch_num, step_num)  # written here, so that the last checkpoint contains the row

    @always
    def post_run(self, train_manager: TrainManager, epoch_num: int, step_num: int, exc_type: type[BaseException] | None = None) -> None:
        if self._detach is not None:
            self._detach()
            self._detach = None
            if not train_manager.moment.batch and exc_type is None:
                self._end_row(epoch_num, step_num)  # other extensions may have recorded metrics in their `post_train`

    def _add(self, tag: str, value: float | str, step: int | None) -> None:
        is_replayed = self._detach is None  # `mirror` first sends the earlier values, which the rows already contain
        if not is_replayed and not isinstance(value, str):
            self._current[tag] = value

    def _end_row(self, epoch_num: int, step_num: int) -> None:
        if not self._current or self._file is None:
            return
        values, self._current = self._current, {}
        self._columns += [tag for tag in values if tag not in self._columns]
        if self._rows and self._rows[-1].epoch_num == epoch_num:  # some metrics were logged between two calls to train()
            values = {**self._rows.pop().values, **values}
            self._num_written = None
        self._rows.append(EpochRow(epoch_num, step_num, values))
        self._write(self._file)

    def _write(self, file: Path) -> None:
        """Append the last row, or rewrite the file if its columns or earlier rows have changed. Warn if writing fails."""
        try:
            if self._num_written == len(self._columns) and file.exists():
                with open(file, "a", newline="", encoding="utf-8") as opened:
                    opened.write(self._text(self._rows[-1:]))
                return
            file.parent.mkdir(parents=True, exist_ok=True)
            text = _csv([["epoch", "step", *self._columns]]) + self._text(self._rows)
            LocalFiles(str(file.parent.absolute())).replace(file.name, text.encode())
            self._num_written = len(self._columns)
        except OSError as error:
            self._num_written = None
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(f"cannot write {file}: {error.strerror or error}", stacklevel=2)

    def _text(self, rows: list[EpochRow]) -> str:
        return _csv([[row.epoch_num, row.step_num, *(row.values.get(tag, "") for tag in self._columns)] for row in rows])

    def state_dict(self) -> dict[str, Any]:
        return {"columns": list(self._columns), "rows": [tuple(row) for row in self._rows], "current": dict(self._current)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._columns = list(state["columns"])
        self._rows = [EpochRow(epoch_num, step_num, dict(values)) for epoch_num, step_num, values in state["rows"]]
        self._current = dict(state["current"])
        self._num_written = None


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
