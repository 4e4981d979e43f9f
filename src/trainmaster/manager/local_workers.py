"""`LocalWorkers`: an executor whose worker processes run on this machine and are reused from one run to the next.

The process that starts a batch is the driver: it assigns the runs and shows their progress. A worker that dies is
replaced, and its run is assigned again. If the driver dies, each worker saves its run and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from trainmaster.arguments import check_int
from trainmaster.errors import SettingError
from trainmaster.manager.error_text import describe_exit
from trainmaster.manager.executor import Report, RunTask, Task
from trainmaster.manager.worker import READY, STOP, WorkerSetup, serve

_TIME_TO_END = 60.0
"""Seconds that workers have to save their runs and exit before they are killed."""
UNGUARDED = 87
"""The exit code of a worker in which importing the program starts the batch again."""


class _Worker:
    """A worker process and its current task."""

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        ours, theirs = context.Pipe()
        self.connection: Connection = ours
        self.process = context.Process(target=serve, args=(theirs, setup), name="trainmaster-worker", daemon=False)
        resource_tracker.ensure_running()  # called before SIGINT is blocked, because it unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until `serve` ignores SIGINT
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.task: Task | None = None
        self.attempt = 0
        self.is_ready = False

    def assign(self, task: Task) -> None:
        self.task, self.attempt = task, 0
        self.send(task)

    def receive(self) -> list[Report]:
        """Return the reports that have arrived. If the worker has closed the pipe, wait until its process ends."""
        reports: list[Report] = []
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if message == READY:
                    self.is_ready = True
                elif message.kind == "claimed":
                    self.attempt = message.attempt
                else:
                    reports.append(message)
                    self.task = self.task if message.kind == "progress" else None
        except (EOFError, OSError):
            self.process.join(5.0)
        return reports

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the process has ended; `reports` will detect this
            self.connection.send(message)


class LocalWorkers:
    """Runs tasks in `num` worker processes. `manager.batch(configs, workers=4)` uses this class."""

    def __init__(self, num: int) -> None:
        check_int("workers", num, min=1)
        self._num = num
        self._workers: list[_Worker] = []
        self._waiting: list[Task] = []
        self._reports: list[Report] = []
        self._is_stopping = False

    def open(self, manager: Any, run_task: RunTask) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(UNGUARDED)  # the driver prints the error once; otherwise each worker would print it
        if multiprocessing.parent_process() is not None:
            raise SettingError(
                "a worker was asked to start workers",
                why="each worker imports the program that started it, and the program starts a batch when it is imported",
                hint='put the code that starts the batch below `if __name__ == "__main__":`',
            )
        _refuse_notebook(manager.definition)
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._setup = WorkerSetup.of(manager, pickle.dumps, max(1, cpus // self._num))
        self._context = multiprocessing.get_context("spawn")

    def has_room(self) -> bool:
        return not self._is_stopping and len(self._waiting) + sum(worker.task is not None for worker in self._workers) < self._num

    def submit(self, task: Task) -> None:
        self._waiting.append(task)
        self._assign()

    def _assign(self) -> None:
        while self._waiting:
            free = next((worker for worker in self._workers if worker.task is None and worker.process.is_alive()), None)
            if free is None and len(self._workers) >= self._num:
                return
            if free is None:
                free = _Worker(self._context, self._setup)
                self._workers.append(free)
            free.assign(self._waiting.pop(0))

    def reports(self, timeout: float) -> list[Report]:
        if not self._reports:
            by_handle: dict[Any, _Worker] = {}
            for worker in self._workers:
                by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
            for handle in wait(list(by_handle), timeout) if by_handle else ():
                if by_handle[handle] in self._workers:
                    self._receive(by_handle[handle])
            self._assign()
        reports, self._reports = self._reports, []
        return reports

    def _receive(self, worker: _Worker) -> None:
        self._reports += worker.receive()
        if worker.process.is_alive():
            return
        self._workers.remove(worker)
        worker.connection.close()
        code = worker.process.exitcode or 0
        if worker.task is not None:
            kind, text = ("stopped", "its worker ended") if self._is_stopping else ("died", f"its worker {describe_exit(code)}")
            self._reports.append(Report(worker.task.job.key, kind, text, attempt=worker.attempt))  # type: ignore[arg-type]
        if not worker.is_ready and code == UNGUARDED:
            raise SettingError(
                "the program starts this batch when it is imported",
                why="each worker imports the program that started it",
                hint='put the code that starts the batch below `if __name__ == "__main__":`',
            )

    def stop(self, reason: str) -> None:
        self._is_stopping = True
        self._reports += [Report(task.job.key, "stopped", reason) for task in self._waiting]
        self._waiting = []
        for worker in self._workers:
            worker.send(STOP)

    def close(self) -> None:
        self.stop("the batch is over")
        deadline = time.monotonic() + _TIME_TO_END
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers = []


def _refuse_notebook(definition: Any) -> None:
    """Raise an error if a worker could not import the manager's class or `make_loop`."""
    main = sys.modules["__main__"]
    if definition.__module__ == "__main__" and not os.path.isfile(getattr(main, "__file__", None) or ""):
        raise SettingError(
            f"workers cannot import {definition.__name__}, which was defined in a notebook or at a prompt",
            hint="define it in a file, and import it from there",
        )
