"""The protocol for metric writers, which uses TensorBoard's method names, and the default writer, which keeps values in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from trainmaster.config.masking import Mask
from trainmaster.loop.loggers import Logger, Loggers
from trainmaster.store.events import RowsByName
from trainmaster.store.metric_names import checked_metric_name


@runtime_checkable
class Writer(Protocol):
    """The methods that a loop and its extensions call. TensorBoard's `SummaryWriter` has them.

    If a writer also has `flush()`, the loop calls it before each checkpoint and at the end of `train()`.
    """

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None) -> None: ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...


def record(writer: Writer | None, tag: str, value: Any, x: float | None, over: str) -> None:
    """Write a number, with the unit of `x` ("epoch", "update", "batch" or "sample") if the writer supports it.

    Without a writer, as in a `TrainTestLoop`, nothing is written.
    """
    add_number = getattr(writer, "add_number", None)
    if add_number is not None:
        add_number(tag, value, x, over)
    elif writer is not None:
        writer.add_scalar(tag, value, x)  # type: ignore[arg-type]  # `x` may be a fraction of an epoch


def flush_of(writer: Writer) -> Callable[[], object]:
    """Return the `flush` method of a writer, or a function that does nothing."""
    found = getattr(writer, "flush", None)
    return found if callable(found) else lambda: None


def mute(writer: Writer, is_muted: bool) -> None:
    """Make a writer drop new rows if `is_muted` is True, or resume recording if it is False.

    Writers without a `mute` method are not affected.
    """
    found = getattr(writer, "mute", None)
    if callable(found):
        found(is_muted)


class MemoryWriter:
    """Keeps every value in memory: `history[tag]` is a list of (step, value) pairs, in order."""

    def __init__(self) -> None:
        self.history: RowsByName = {}
        self.loggers = Loggers()
        self._is_muted = False

    def mute(self, is_muted: bool) -> None:
        """Drop new rows from now on if `is_muted` is True, or resume recording if it is False."""
        self._is_muted = is_muted

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        value = scalar_value.detach() if hasattr(scalar_value, "detach") else scalar_value
        self._write(tag, float(value), global_step)

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self._write(tag, Mask.of()(str(text_string)), global_step)

    def _write(self, tag: str, value: float | str, step: int | None) -> None:
        checked_metric_name(tag)
        if self._is_muted:
            return
        self.history.setdefault(tag, []).append((step, value))
        self.loggers.send(tag, value, step)

    def flush(self) -> None:
        """Do nothing, because the rows are in memory and checkpoints contain them."""

    def names(self) -> list[str]:
        """Return the names of all metrics whose values are numbers."""
        return [tag for tag, rows in self.history.items() if isinstance(rows[-1][1], float)]

    def mirror(self, to: Logger) -> Callable[[], None]:
        """Call `to` with all rows recorded so far, and from then on with each new row.

        Return a function that detaches `to`. See `Logger`.
        """
        return self.loggers.attach(to, [(tag, value, step) for tag, rows in self.history.items() for step, value in rows])

    def last(self, tag: str) -> float | None:
        """Return the last number that was written with a tag, or None if there is none."""
        value = self.history[tag][-1][1] if tag in self.history else None
        return value if isinstance(value, float) else None

    def state_dict(self) -> dict[str, Any]:
        return {"history": {tag: list(rows) for tag, rows in self.history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        before = self.history
        self.history = {tag: [(step, value) for step, value in rows] for tag, rows in state["history"].items()}
        for tag, rows in self.history.items():  # send attached loggers the rows that they have not received
            for step, value in rows[len(before.get(tag, ())) :]:
                self.loggers.send(tag, value, step)
