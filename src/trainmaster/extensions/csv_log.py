"""The numbers of a training as a CSV file."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from trainmaster.errors import SettingError
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Mirrored, Writer
from trainmaster.stages import Observer, always

FILE = "metrics.csv"


class CSVLog(Observer):
    """Writes one line per epoch: its number, the updates done, and the last value of everything that was recorded in it.

    The file is `metrics.csv` below the loop's `train_dir`, or `path`. A number that is recorded for the first time becomes a new column.
    The line of an epoch is written when its evaluation is through; after a kill the file goes on where the training does.
    """

    is_guarded = False

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        if path is not None and (not isinstance(path, str | PathLike) or not os.fspath(path)):
            raise SettingError(f"path={path!r}: wanted a file", hint=f"leave it out: it is `{FILE}` below train_dir")
        self.path = None if path is None else Path(os.fspath(path))
        self._columns: list[str] = []
        self._rows: list[tuple[int, int, dict[str, float]]] = []
        self._open: dict[str, float] = {}
        self._file: Path | None = None
        self._num_written: int | None = None
        """How many columns the file has; None where it has to be written anew."""
        self._stop: Callable[[], None] | None = None
        self._has_failed = False

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        train_dir = getattr(loop, "train_dir", None)
        self._file = self.path if self.path is not None else None if train_dir is None else Path(train_dir) / FILE
        if self._file is None:
            raise SettingError("CSVLog has no file to write", hint="give the loop a train_dir, or CSVLog a path")
        if not isinstance(writer, Mirrored):
            raise SettingError(
                "CSVLog writes what the loop's writer records, and "
                + ("this loop has none" if writer is None else f"cannot listen to {type(writer).__name__}"),
                hint="use it with a TrainManager" if writer is None else "leave `writer` out; the extension TensorBoard writes event files",
            )
        self._num_written = None
        self._stop = _listening(writer, self._take)
        self._write()

    def pre_train_step_epoch(self, train_manager: TrainManager, epoch_num: int, step_num: int) -> None:
        if not train_manager.moment.batch:  # an epoch that is taken up in its middle is opened once more
            self._close_row(epoch_num, step_num)

    @always
    def post_train(self, epoch_num: int, step_num: int, stopped: str | None = None, exc_type: type[BaseException] | None = None) -> None:
        if self._stop is None:
            return
        stop, self._stop = self._stop, None
        stop()
        if stopped is None and exc_type is None:
            self._close_row(epoch_num, step_num)

    def _take(self, tag: str, value: float | str, step: int | None) -> None:
        if not isinstance(value, str):
            self._open[tag] = value

    def _close_row(self, epoch_num: int, step_num: int) -> None:
        if not self._open:
            return
        values, self._open = self._open, {}
        self._columns += [tag for tag in values if tag not in self._columns]
        if self._rows and self._rows[-1][0] == epoch_num:  # recorded in two parts: at the end of a call of train(), and after it
            epoch_num, _, before = self._rows.pop()
            values = {**before, **values}
            self._num_written = None
        self._rows.append((epoch_num, step_num, values))
        self._write()

    def _write(self) -> None:
        """Append the last row, or write all anew where there are new columns. A full disk is no reason to stop training."""
        assert self._file is not None
        try:
            if self._num_written == len(self._columns) and self._file.exists():
                with open(self._file, "a", newline="", encoding="utf-8") as file:
                    file.write(_lines([self._cells(self._rows[-1])]))
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                header = ["epoch", "step", *self._columns]
                temporary.write_text(_lines([header, *map(self._cells, self._rows)]), encoding="utf-8", newline="")
                os.replace(temporary, self._file)
            finally:
                temporary.unlink(missing_ok=True)
            self._num_written = len(self._columns)
        except OSError as error:
            self._num_written = None  # whatever is there now
            if not self._has_failed:
                self._has_failed = True
                warnings.warn(f"{self._file} is not written: {error.strerror or error}", stacklevel=2)

    def _cells(self, row: tuple[int, int, dict[str, float]]) -> list[Any]:
        epoch_num, step_num, values = row
        return [epoch_num, step_num, *(values.get(tag, "") for tag in self._columns)]

    def state_dict(self) -> dict[str, Any]:
        return {"columns": list(self._columns), "rows": list(self._rows), "open": dict(self._open)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._columns = list(state["columns"])
        self._rows = [(epoch_num, step_num, dict(values)) for epoch_num, step_num, values in state["rows"]]
        self._open = dict(state["open"])
        self._num_written = None


def _listening(writer: Mirrored, to: Callable[[str, float | str, int | None], None]) -> Callable[[], None]:
    """Listen to what comes, and not to what was: that is in the rows already."""
    is_new = False

    def take(tag: str, value: float | str, step: int | None) -> None:
        if is_new:
            to(tag, value, step)

    stop = writer.mirror(take)
    is_new = True
    return stop


def _lines(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
