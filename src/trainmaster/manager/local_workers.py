"""Local workers: processes of this machine that train runs, and stay warm from one to the next.

Whoever starts a batch is the driver: it hands out runs and shows how far they are. A worker that dies is replaced, and its run is handed
out again; where the driver dies, each worker saves what it has and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from trainmaster.errors import RunFailedError, SettingError
from trainmaster.manager.executor import Do, Report, Task
from trainmaster.manager.launch import Launch
from trainmaster.manager.worker import READY, STOP, Setup, serve

_ENDING = 60.0
"""Seconds that workers have to save and end when they are asked to; then they are killed."""
_MAX_STILLBORN = 3
UNGUARDED = 87
"""The exit code of a worker that found itself in a program that starts a batch when it is imported."""


class _Worker:
    """One process, and the task it has."""

    def __init__(self, context: Any, setup: Setup) -> None:
        ours, theirs = context.Pipe()
        self.connection: Connection = ours
        self.process = context.Process(target=serve, args=(theirs, setup), name="trainmaster-worker", daemon=False)
        resource_tracker.ensure_running()  # first, because it unblocks what is blocked
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as long as it starts: see `serve`
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.task: Task | None = None
        self.is_ready = False

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone: its end is told as such
            self.connection.send(message)


class LocalWorkers:
    """`num` processes; `manager.batch(configs, workers=4)` makes them."""

    def __init__(self, num: int) -> None:
        if isinstance(num, bool) or not isinstance(num, int) or num < 1:
            raise SettingError(f"workers={num!r}: wanted a number of processes, 1 or more")
        self._num = num
        self._workers: list[_Worker] = []
        self._waiting: list[Task] = []
        self._reports: list[Report] = []
        self._is_stopping = False
        self._num_stillborn = 0

    def open(self, manager: Any, do: Do) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            sys.exit(UNGUARDED)  # the driver tells; each worker would tell the same
        if multiprocessing.parent_process() is not None:
            raise SettingError(
                "a worker was asked to start workers",
                why="each worker imports the program that started it, and the program starts a batch when it is imported",
                hint='put what the program does below `if __name__ == "__main__":`',
            )
        if manager.store.root is None:
            raise SettingError("workers need a store on a disk", hint="give the manager a store_dir")
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        launch = Launch(manager.launch.target, manager.launch.program)
        self._setup = Setup(
            manager.recipe().packed(), tuple(sys.path), max(1, cpus // self._num), multiprocessing.get_start_method(), launch
        )
        self._context = multiprocessing.get_context("spawn")

    def has_room(self) -> bool:
        return not self._is_stopping and len(self._waiting) + sum(worker.task is not None for worker in self._workers) < self._num

    def submit(self, task: Task) -> None:
        self._waiting.append(task)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            free = next((worker for worker in self._workers if worker.task is None and worker.process.is_alive()), None)
            if free is None and len(self._workers) >= self._num:
                return
            if free is None:
                free = _Worker(self._context, self._setup)
                self._workers.append(free)
            free.task = self._waiting.pop(0)
            free.send(free.task)

    def reports(self, timeout: float) -> list[Report]:
        if not self._reports:
            by_handle: dict[Any, _Worker] = {}
            for worker in self._workers:
                by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
            for handle in wait(list(by_handle), timeout) if by_handle else ():
                if by_handle[handle] in self._workers:
                    self._hear(by_handle[handle])
            self._hand_out()
        found, self._reports = self._reports, []
        return found

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker has said, and its end."""
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if message == READY:
                    worker.is_ready, self._num_stillborn = True, 0
                elif message.kind == "progress":
                    self._reports.append(message)
                else:
                    worker.task = None
                    self._reports.append(message)
        except (EOFError, OSError):
            worker.process.join(5.0)
        if worker.process.is_alive():
            return
        self._workers.remove(worker)
        worker.connection.close()
        code = worker.process.exitcode
        if worker.task is not None:
            if self._is_stopping:
                self._reports.append(Report(worker.task.work.key, "stopped", "its worker ended"))
            else:
                self._reports.append(Report(worker.task.work.key, "died", f"its worker {_ended(code)}"))
        if not worker.is_ready and code == UNGUARDED:
            raise SettingError(
                "the program starts this batch when it is imported",
                why="each worker imports the program that started it",
                hint='put what the program does below `if __name__ == "__main__":`',
            )
        if not worker.is_ready and not self._is_stopping:
            self._num_stillborn += 1
            if self._num_stillborn >= _MAX_STILLBORN:
                raise RunFailedError(
                    "workers end before they are ready",
                    why=f"the last one {_ended(code)}; what it printed stands above",
                    hint="try the batch without workers first",
                )

    def stop(self, reason: str) -> None:
        self._is_stopping = True
        for task in self._waiting:
            self._reports.append(Report(task.work.key, "stopped", reason))
        self._waiting = []
        for worker in self._workers:
            worker.send(STOP)

    def close(self) -> None:
        self.stop("the batch is over")
        deadline = time.monotonic() + _ENDING
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers = []


def _ended(code: int | None) -> str:
    """
    >>> _ended(-9), _ended(1)
    ('was killed by signal 9', 'ended with exit code 1')
    """
    return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
