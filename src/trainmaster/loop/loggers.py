"""Loggers: functions that receive everything that is recorded during training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from trainmaster.errors import SettingError, shown

Row = tuple[str, float | str, int | None]
"""The arguments of a logger: tag, value and step."""


class Logger(Protocol):
    """A function that receives everything that is recorded during training. Attach it with `writer.mirror(logger)`.

    **Arguments.** Each call passes one row: the name of a metric (`"valid/loss"`), its value (a float, or a str for text), and
    its step. The step is the number of the epoch, update, batch or sample that the value belongs to, or None.

    **Timing.** `mirror` first calls the logger with every row recorded so far. Each new row is sent when it is recorded.
    Rows with the same name are sent in order. Under a manager, the rows of an evaluation are sent together when the
    evaluation is complete; a stopped evaluation sends none.

    **Threads.** The training thread calls the logger and waits for it. A logger that sends rows over a network should queue
    them.

    **Errors.** If the logger raises an error, training continues. The logger is detached with a warning that names it,
    and the row stays recorded. If the error occurs while `mirror` sends the earlier rows, `mirror` raises it.

    **Resuming.** A logger that is attached in `pre_train` gets all rows up to the checkpoint from which the run resumes.
    It does not get rows that a killed process recorded after that checkpoint, because the process that resumes the run
    trains on the same batches again and records the same rows. A logger that starts with an empty file in each process
    therefore writes every row once. If a logger keeps the rows of earlier processes, for example in a tracking service,
    a new row should replace the earlier one with the same name and step.
    """

    def __call__(self, tag: str, value: float | str, step: int | None, /) -> None: ...


@runtime_checkable
class Mirrored(Protocol):
    """A writer that loggers can be attached to, such as the default writer and the writer of a manager's run."""

    def mirror(self, to: Logger) -> Callable[[], None]:
        """Call `to` with all rows recorded so far, and from then on with each new row.

        Return a function that detaches `to`. See `Logger`.
        """


class Loggers:
    """The loggers of one writer."""

    def __init__(self) -> None:
        self._loggers: dict[object, Logger] = {}
        self._flushes: dict[object, Callable[[], object]] = {}

    def __bool__(self) -> bool:
        return bool(self._loggers)

    def attach(self, logger: Logger, rows: Iterable[Row], flush: Callable[[], object] | None = None) -> Callable[[], None]:
        if not callable(logger):
            raise SettingError(
                f"`mirror` takes a function of (tag, value, step), not {shown(logger)}", hint="writer.mirror(lambda tag, value, step: ...)"
            )
        for row in rows:
            logger(*row)
        token = object()  # the same function may be attached twice
        self._loggers[token] = logger
        if flush is not None:
            self._flushes[token] = flush
        return lambda: self._detach(token)

    def send(self, tag: str, value: float | str, step: int | None) -> None:
        """Call each logger with a row."""
        self._call(self._loggers, f"at {tag!r}", tag, value, step)

    def flush(self) -> None:
        """Call the `flush` function of each logger that has one."""
        self._call(self._flushes, "to flush")

    def _call(self, functions: Mapping[object, Callable[..., object]], what: str, *args: Any) -> None:
        """Call each function. If one raises an error, detach its logger, and warn after the others have been called."""
        failures = []
        for token, function in list(functions.items()):
            try:
                function(*args)
            except Exception as error:  # an error in a tracking service must not stop training
                logger = self._loggers.get(token)
                self._detach(token)
                name = getattr(logger, "__qualname__", type(logger).__qualname__)
                failures.append(f"the logger `{name}` failed {what} and gets no more rows: {type(error).__name__}: {error}")
        for text in failures:
            warn_or_print(text)

    def _detach(self, token: object) -> None:
        self._loggers.pop(token, None)
        self._flushes.pop(token, None)


def warn_or_print(text: str) -> None:
    """Issue a warning. If warnings are errors (`python -W error`), print the text instead."""
    try:
        warnings.warn(text, stacklevel=3)
    except Exception:
        print(f"trainmaster: {text}", file=sys.stderr)
