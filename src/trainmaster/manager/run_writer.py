"""The writer of a loop under a manager: every number goes to the run's event log, and the last of each name to its preview."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster.config.secrets import Mask
from trainmaster.loop.writer import Mirror

Row = dict[str, Any]


def _no_rows() -> Iterable[Row]:
    return ()


class RunWriter:
    """Appends what a loop records to an event log: `{"tag", "value", "step", "time"}`, one row a number.

    The rows of an evaluation are held back until it is complete, so that one that was stopped half-way leaves none. Without a log nothing
    is kept but the last value of each tag.
    """

    def __init__(self) -> None:
        self._append: Callable[[Row], None] | None = None
        self._rows: Callable[[], Iterable[Row]] = _no_rows
        self._mirrors: list[Mirror] = []
        self.latest: dict[str, Any] = {}
        """The last value of each tag."""
        self._held: list[Row] | None = None
        self._is_muted = False
        self._mask = Mask()

    def hide(self, mask: Mask) -> None:
        """Take these secrets out of texts. Numbers and their names are not looked at."""
        self._mask = mask

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        value = scalar_value.detach() if hasattr(scalar_value, "detach") else scalar_value
        self._write({"tag": str(tag), "value": float(value), "step": global_step, "time": time.time()})

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self._write({"tag": str(tag), "text": self._mask(str(text_string)), "step": global_step, "time": time.time()})

    def last(self, tag: str) -> float | None:
        """The last number that was written with a tag, that of an evaluation at hand included."""
        held = (row["value"] for row in reversed(self._held or []) if row["tag"] == tag and "value" in row)
        return next(held, self.latest.get(tag))

    def append_to(self, append: Callable[[Row], None], rows: Callable[[], Iterable[Row]] = _no_rows) -> None:
        """Have rows go to a log from now on; `rows` reads those that are in it."""
        self._append, self._rows = append, rows

    def mirror(self, to: Mirror) -> Callable[[], None]:
        """Have `to` called with all rows of the log, and with each that comes, until what is returned is called."""
        for row in self._rows():
            _reflect(row, [to])
        self._mirrors.append(to)
        return lambda: self._mirrors.remove(to)

    def mute(self, is_muted: bool) -> None:
        """Write nothing: hooks say once more what they said before a training was taken up."""
        self._is_muted = is_muted

    def hold(self) -> None:
        """Hold rows back from now on."""
        self._held = []

    def let_go(self, is_complete: bool) -> None:
        """Write what was held back, or forget it."""
        held, self._held = self._held, None
        for row in held or [] if is_complete else []:
            self._write(row)

    def _write(self, row: Row) -> None:
        if self._is_muted:
            return
        if self._held is not None:
            self._held.append(row)
            return
        if self._append is not None:
            self._append(row)
        if "value" in row:
            self.latest[row["tag"]] = row["value"]
        _reflect(row, self._mirrors)


def _reflect(row: Row, mirrors: list[Mirror]) -> None:
    value = row.get("value", row.get("text"))
    if isinstance(row.get("tag"), str) and isinstance(value, int | float | str):
        for to in mirrors:
            to(row["tag"], value, row.get("step"))
