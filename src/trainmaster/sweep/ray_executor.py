"""`RayExecutor`: an executor whose workers are actors on a Ray cluster, or on a Ray instance that it starts on this machine.

An actor trains many runs, one after another. If an actor dies, a new one starts wherever the cluster has room, and the
run is assigned again. All state is in the store, so if the driver or the head node is lost, repeating the call
resumes the unfinished runs.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sys
import time
from typing import Any

from trainmaster.arguments import check_int, check_number
from trainmaster.errors import RunFailedError, SettingError
from trainmaster.manager.executor import Report, RunTask, Task
from trainmaster.manager.worker import WorkerSetup
from trainmaster.store.program import cell_digest
from trainmaster.sweep import ray_worker
from trainmaster.sweep.ray_cluster import Cluster, connect, count_places, import_ray
from trainmaster.sweep.ray_worker import Place, RayWorker, Readiness, find_versions, shared_environment
from trainmaster.text import counted

_TIME_TO_END = 60.0
"""How many seconds workers have to save their runs and exit before they are killed."""
_TIME_TO_START = 30.0
"""How many seconds to wait for all workers. After that, runs start on the workers that are ready."""
_TIME_TO_JOIN = 10.0
"""How many seconds to wait for nodes to join a cluster."""
_LISTEN_TIME = 5.0
_MAX_FAILED_STARTS = 5
"""If this many workers in a row die before they are ready, the batch fails."""
_CHECK_HEAD_EVERY = 5.0
_HEAD_TIME = 25.0
"""If the head node cannot be reached for this many seconds, the batch fails. After 60 s, Ray would end this process."""


class _Worker:
    """An actor, its pending calls, and its current task."""

    def __init__(self, actor: Any, readiness: Any) -> None:
        self.actor = actor
        self.calls: dict[Any, str] = {readiness: "prepare"}
        """Maps the object reference of each pending result to the name of the called method."""
        self.is_ready = False
        self.node = ""
        self.task: Task | None = None
        self.attempt = 0

    def call(self, method: str, argument: Any) -> None:
        group = {} if method == "run" else {"concurrency_group": "control"}
        self.calls[getattr(self.actor, method).options(**group).remote(argument)] = method

    def assign(self, task: bytes, assigned: Task) -> None:
        self.task, self.attempt = assigned, 0
        self.call("run", task)

    def note_claims(self, reports: list[Report]) -> None:
        """Remember the number of the attempt that the current task has claimed. Late reports about an earlier task are ignored."""
        for each in reports:
            if each.kind == "claimed" and self.task is not None and each.key == self.task.job.key:
                self.attempt = each.attempt


class RayExecutor:
    """Trains runs in `workers` actors on the Ray cluster at `address`.

    Each actor reserves `cpus_per_run` CPUs and `gpus_per_run` GPUs. If there is neither an address nor the environment
    variable `RAY_ADDRESS`, Ray is started on this machine. If your program has already called `ray.init`, that
    connection is used. The store must be a folder that all nodes can access.

    ```python
    manager.sweep({"lr": [0.1, 0.01]}, workers=RayExecutor(workers=8, address="auto", gpus_per_run=0.5))
    ```
    """

    _ray: Any = None  # the module `ray` while a batch runs

    def __init__(self, workers: int = 2, address: str | None = None, cpus_per_run: float = 1, gpus_per_run: float = 0) -> None:
        check_int("workers", workers, min=1)
        check_number("cpus_per_run", cpus_per_run, min=0)
        check_number("gpus_per_run", gpus_per_run, min=0)
        for name, amount in {"cpus_per_run": cpus_per_run, "gpus_per_run": gpus_per_run}.items():
            if amount > 1 and amount != int(amount):
                raise SettingError(f"{name}={amount}: Ray can share only a single device", hint="use a fraction below 1, or a whole number")
        self.workers, self.address, self.cpus_per_run, self.gpus_per_run = workers, address, cpus_per_run, gpus_per_run

    def open(self, manager: Any, run_task: RunTask) -> None:
        self._ray = ray = import_ray()
        self._cluster = Cluster(False, None)
        self._workers: list[_Worker] = []
        self._waiting: list[Task] = []
        self._reports: list[Report] = []
        self._is_stopping = self._has_started = self._has_warned = False
        self._num_failed_starts = 0
        self._print = manager.job_runner.console.print
        self._token, self._probe = secrets.token_hex(8), ""
        is_notebook = _main_file() is None and manager.definition.__module__ == "__main__"
        cells = cell_digest(manager.definition) if is_notebook else ""
        # This may raise an error, so it is done before connecting.
        setup = WorkerSetup.of(manager, ray.cloudpickle.dumps, max(1, int(self.cpus_per_run)), cells)
        self._probe = os.path.join(manager.store.root, "sweeps", f"probe-{self._token}.tmp")
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._cluster = connect(ray, self.address, max(cpus, math.ceil(self.workers * self.cpus_per_run)))
        wait = _TIME_TO_JOIN if self.address is not None else 0.0
        self._num_expected = min(self.workers, count_places(ray, self.cpus_per_run, self.gpus_per_run, wait))
        if self._num_expected < self.workers:
            self._print(f"the Ray cluster has room for {counted(self._num_expected, 'worker')} of {self.workers}")
        os.makedirs(os.path.dirname(self._probe), exist_ok=True)
        with open(self._probe, "x") as file:
            file.write(self._token)
        ray.cloudpickle.register_pickle_by_value(ray_worker)
        self._actor_class = ray.remote(concurrency_groups={"control": 2})(RayWorker).options(
            num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, scheduling_strategy="SPREAD"
        )
        self._setup, self._place = ray.put(bytes(ray.cloudpickle.dumps(setup))), ray.put(self._make_place(manager))
        self._opened = self._was_ready = self._checked_head = self._saw_head = time.monotonic()

    def _make_place(self, manager: Any) -> Place:
        return Place(
            path=tuple(os.path.abspath(each) for each in sys.path),
            folder=os.getcwd(),
            environment=shared_environment(os.environ),
            main=_main_file(),
            store=manager.store.root,
            probe=self._probe,
            token=self._token,
            versions=find_versions(),
        )

    # ---- tasks

    def has_room(self) -> bool:
        num_ready = sum(worker.is_ready for worker in self._workers)
        num_tasks = len(self._waiting) + sum(worker.task is not None for worker in self._workers)
        return not self._is_stopping and num_tasks < max(1, num_ready)

    def submit(self, task: Task) -> None:
        self._waiting.append(task)
        self._assign()

    def _assign(self) -> None:
        while not self._is_stopping and len(self._workers) < self.workers:
            actor = self._actor_class.remote()
            self._workers.append(_Worker(actor, actor.prepare.remote(self._place, self._setup)))
        ready, now = [worker for worker in self._workers if worker.is_ready], time.monotonic()
        if ready:
            self._was_ready, self._has_warned = now, False
        elif now - self._was_ready > _TIME_TO_START and not self._has_warned:
            self._has_warned = True
            self._print("no Ray worker is ready; other jobs may use the CPUs and GPUs of the cluster")
        is_late = now - self._opened > _TIME_TO_START
        self._has_started = self._has_started or len(ready) >= self._num_expected or (is_late and bool(ready))
        for worker in ready if self._has_started else ():
            if self._waiting and worker.task is None:
                task = self._waiting.pop(0)
                worker.assign(self._ray.cloudpickle.dumps(task), task)

    def reports(self, timeout: float) -> list[Report]:
        if not self._reports:
            self._assign()
            by_call = {call: worker for worker in self._workers for call in worker.calls}
            found, _ = self._ray.wait([*by_call], timeout=timeout) if by_call else ([], [])
            if found:
                found, _ = self._ray.wait([*by_call], num_returns=len(by_call), timeout=0)
            for call in found:
                if by_call[call] in self._workers:
                    self._receive(by_call[call], call)
            self._assign()
            self._check_head()
        reports, self._reports = self._reports, []
        return reports

    def _receive(self, worker: _Worker, call: Any) -> None:
        method = worker.calls.pop(call)
        try:
            value = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._drop(worker, error)
            return
        if method == "prepare":
            self._accept(worker, value)
        elif method != "stop":
            worker.note_claims(value)
            self._reports += value
            if method == "run":
                worker.task = None
            else:
                worker.call("listen", _LISTEN_TIME)

    def _accept(self, worker: _Worker, readiness: Readiness) -> None:
        if readiness.problem:
            raise SettingError(f"a Ray worker on {readiness.node} cannot train", why=readiness.problem, hint=readiness.hint)
        if readiness.note:
            self._print(f"Ray worker on {readiness.node}: {readiness.note}")
        worker.node, worker.is_ready, self._num_failed_starts = readiness.node, True, 0
        worker.call("listen", _LISTEN_TIME)

    def _drop(self, worker: _Worker, error: Exception) -> None:
        """Kill and remove a failed worker.

        The worker may only be unreachable. If it were not killed, it might continue to train a run that another worker
        takes over.
        """
        self._kill(worker)
        if worker.task is not None:
            cause = "cannot be reached" if isinstance(error, self._ray.exceptions.ActorUnavailableError) else "has died"
            kind, text = ("stopped", "its worker ended") if self._is_stopping else ("died", f"its worker on {worker.node} {cause}")
            self._reports.append(Report(worker.task.job.key, kind, text, attempt=worker.attempt))  # type: ignore[arg-type]
        self._num_failed_starts += not worker.is_ready
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise RunFailedError(
                "Ray workers exit before they are ready",
                why=f"{counted(self._num_failed_starts, 'worker')} in a row exited; the last one: {_first_line(error)}",
                hint="try the batch without Ray first; Ray's own logs are in the folder /tmp/ray/session_latest/logs of the node",
            )

    def _kill(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with contextlib.suppress(Exception):  # the actor is already gone, or unreachable
            self._ray.kill(worker.actor)

    def _check_head(self) -> None:
        """Raise an error if the head node is gone. Without this check, Ray would end this process after a minute."""
        if time.monotonic() - self._checked_head < _CHECK_HEAD_EVERY:
            return
        self._checked_head = now = time.monotonic()
        if self._cluster.is_head_alive():
            self._saw_head = now
        elif now - self._saw_head >= _HEAD_TIME:
            raise RunFailedError(
                "the head node of the Ray cluster is gone",
                why="without it, Ray ends all its processes",
                hint="repeat the command when the cluster is up again: it resumes the runs from their last checkpoints",
            )

    # ---- the end

    def stop(self, reason: str) -> None:
        self._is_stopping = True
        self._reports += [Report(task.job.key, "stopped", reason) for task in self._waiting]
        self._waiting = []
        for worker in self._workers:
            if worker.is_ready:
                worker.call("stop", reason)

    def close(self) -> None:
        if self._ray is None:
            return
        deadline = time.monotonic() + _TIME_TO_END
        with contextlib.suppress(Exception):
            self.stop("the batch is over")
        while any(worker.task is not None for worker in self._workers) and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # show only the error that ended the batch
                self.reports(0.2)
        for worker in [*self._workers]:
            self._kill(worker)
        with contextlib.suppress(OSError):
            os.unlink(self._probe)
        if self._cluster.is_ours:
            self._ray.shutdown()
        self._ray = None


def _main_file() -> str | None:
    """Return the script that this process runs, or None in a notebook or an interactive session."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.abspath(file) if file and os.path.isfile(file) else None


def _first_line(error: Exception) -> str:
    """Return the first line of a Ray error, which describes the problem. Ray's messages are long."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
