"""`Executor`: the protocol for objects that run the jobs of a batch. `InProcess` runs them one by one in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from trainmaster.manager.job import Job
from trainmaster.store import Store
from trainmaster.store.events import RowsByName

BY_BATCH = "batch"
"""The value of `by` in the claim of an attempt that a batch started."""


StopCheck = Callable[[Store, RowsByName], str | None]
"""Called after each evaluation with the run's recorded metrics. Returns a reason to save and stop the run, or None.

It is sent to workers, so it must be picklable.
"""


@dataclass(frozen=True)
class Task:
    """A job that an executor should run now, and the settings for running it."""

    job: Job
    resume: bool
    stop_check: StopCheck | None = None
    expired: int = 0
    """The number of the attempt to replace immediately because its lease has expired or its worker has died; 0 if there is none."""


class Report(NamedTuple):
    """The result of a task, or its progress."""

    key: str
    kind: Literal["claimed", "progress", "done", "found", "held", "stopped", "failed", "died"]
    """While the task runs, a worker sends "claimed" as soon as it holds the lease, and then "progress".

    "found" means that another process had trained the run before the task began. "held" means that another process is
    training the run now.
    """
    text: str = ""
    """Why the task failed, died, stopped, or was left to another process."""
    error: Exception | None = None
    """The error itself, if it happened in this process."""
    attempt: int = 0
    """The number of the attempt that the task claimed, if it is known."""
    epoch: int = 0
    num_epochs: int | None = None
    share: float | None = None
    """The fraction of the run that is done, if it is known more precisely than in whole epochs."""
    metric: tuple[str, float] | None = None
    """The monitored metric and its value after this epoch."""
    is_first: bool = False
    """Whether this report shows the progress that the run had already made when this task began."""


RunTask = Callable[[Task], Report]


class Executor(Protocol):
    """Runs the tasks of a batch, in parallel where possible.

    The last report of each task says how the task ended, so its kind is neither "claimed" nor "progress". If a worker
    died, the report contains the attempt that this worker had claimed, so that the batch can start a new attempt without
    waiting for the lease to expire.
    """

    def open(self, manager: Any, run_task: RunTask) -> None:
        """Prepare for training with `manager`. `run_task` runs a task in this process."""

    def has_room(self) -> bool: ...

    def submit(self, task: Task) -> None: ...

    def reports(self, timeout: float) -> list[Report]:
        """Return the new reports, after waiting up to `timeout` seconds for the first one."""

    def stop(self, reason: str) -> None:
        """Ask all running tasks to save and end. Their reports still arrive."""

    def close(self) -> None: ...


class InProcess:
    """Runs one task at a time in this process."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def open(self, manager: Any, run_task: RunTask) -> None:
        self._run_task = run_task

    def has_room(self) -> bool:
        return not self._reports

    def submit(self, task: Task) -> None:
        self._reports.append(self._run_task(task))

    def reports(self, timeout: float) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def stop(self, reason: str) -> None: ...

    def close(self) -> None: ...
