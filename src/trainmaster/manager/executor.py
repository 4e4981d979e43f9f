"""Executors: who trains the runs of a batch. A small protocol, and the one that trains them here, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from trainmaster.errors import LeaseLostError
from trainmaster.manager.work import Work, described


@dataclass(frozen=True)
class Task:
    """A run to be trained now."""

    work: Work
    resume: bool
    expired: int = 0
    """The attempt whose lease was seen to expire; 0 if none was."""


class Report(NamedTuple):
    """What became of a task, or how far it is."""

    key: str
    kind: Literal["done", "held", "stopped", "failed", "died", "progress"]
    text: str = ""
    """Why it failed, died or was stopped."""
    error: Exception | None = None
    """The error itself, where it happened in this process."""
    epoch: int = 0
    num_epochs: int | None = None


Do = Callable[[Task], Report]


class Executor(Protocol):
    """Trains runs. It may be asked to do as many at once as it has room for; each comes back as one report that is no progress."""

    def open(self, manager: Any, do: Do) -> None:
        """Get ready to train what `manager` trains; `do` trains one here."""

    def has_room(self) -> bool: ...

    def submit(self, task: Task) -> None: ...

    def reports(self, timeout: float) -> list[Report]:
        """What there is to report; waits up to `timeout` seconds for something."""

    def stop(self, reason: str) -> None:
        """Ask all that run to save and end; they still report."""

    def close(self) -> None: ...


class Here:
    """Trains in this very process: room for one."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def open(self, manager: Any, do: Do) -> None:
        self._do = do

    def has_room(self) -> bool:
        return not self._reports

    def submit(self, task: Task) -> None:
        self._reports.append(self._do(task))

    def reports(self, timeout: float) -> list[Report]:
        found, self._reports = self._reports, []
        return found

    def stop(self, reason: str) -> None: ...

    def close(self) -> None: ...


def reported(task: Task, do: Do) -> Report:
    """What `do` reports; its errors are reports, too."""
    try:
        return do(task)
    except LeaseLostError:  # whoever replaced this worker goes on with the run
        return Report(task.work.key, "held")
    except Exception as error:
        return Report(task.work.key, "failed", described(error), error)
