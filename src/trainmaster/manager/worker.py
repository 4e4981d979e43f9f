"""The code that runs in a worker process.

An executor sends tasks to the worker, and `WorkerSetup.manager` builds the manager that runs them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import SettingError
from trainmaster.manager.executor import Report, Task
from trainmaster.manager.invocation import Invocation
from trainmaster.manager.output_capture import OutputCapture
from trainmaster.stages.recorded_call import recorded_call

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


READY, STOP = "ready", "stop"


class WorkerSetup(NamedTuple):
    """Everything that a worker needs to build its manager."""

    spec: bytes
    """The manager's class, constructor arguments and current extensions, pickled."""
    path: tuple[str, ...]
    """The driver's `sys.path`."""
    num_threads: int
    start_method: str | None
    """The driver's `multiprocessing` start method, which data loaders use."""
    invocation: Invocation
    """How the driver was started, without its callbacks."""

    @classmethod
    def of(cls, manager: Manager, dumps: Callable[[Any], bytes], num_threads: int, cells: str = "") -> WorkerSetup:
        """Return the setup for workers that build a copy of `manager`.

        The executor provides the function `dumps`, because plain pickle cannot serialize functions and classes that are defined
        in a notebook.
        """
        if manager.store.root is None:
            raise SettingError("workers need a store on a disk", hint="give the manager a store_dir")
        call, invocation = recorded_call(manager), manager.job_runner.invocation
        assert call is not None
        try:
            spec = dumps((type(manager), call.args, call.kwargs, list(manager.extensions.items())))
        except Exception as error:  # an argument may raise any error
            raise SettingError(
                f"{type(manager).__name__} cannot be built in a worker",
                why=f"its class, arguments or extensions cannot be sent to another process: {error}",
                hint="define them at the top of a module, without lambdas and open files",
            ) from error
        start = Invocation(invocation.target, invocation.program, cells=cells)
        return cls(spec, tuple(sys.path), num_threads, multiprocessing.get_start_method(), start)

    @contextlib.contextmanager
    def manager(self, report: Callable[[Report], None], stop_reason: Callable[[], str | None]) -> Iterator[Any]:
        """Build the manager for a `with` block.

        While the `with` block runs, everything that this process prints goes to the log of the current run.
        """
        sys.path[:] = self.path
        multiprocessing.set_start_method(self.start_method, force=True)  # the worker itself was started with "spawn"
        kind, args, kwargs, extensions = pickle.loads(self.spec)
        manager = kind(*args, **kwargs)
        manager.extensions = extensions
        _limit_threads(self.num_threads)
        runner = manager.job_runner
        runner.console.mute()
        with OutputCapture(runner.console.log) as capture:
            runner.configure(replace(self.invocation, report=report, stop_reason=stop_reason, flush=capture.flush))
            yield manager


def serve(connection: Connection, setup: WorkerSetup) -> None:
    """Run the tasks that the driver sends through a pipe, until the driver requests a stop or exits."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that Ctrl-C only reaches the driver, which stops the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    inbox = Inbox(connection)
    with setup.manager(inbox.send, inbox.stop_reason) as manager:
        inbox.send(READY)
        while (task := inbox.next_task()) is not None and inbox.stop_reason() is None:
            report = manager.job_runner.run_task(task)
            inbox.send(report._replace(error=None))  # only its text is sent, because an error may not be picklable


class Inbox:
    """Reads the driver's messages in a thread, so that a request to stop is received while a run is being trained."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._reason: str | None = None
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="trainmaster-inbox", daemon=True).start()

    def _read(self) -> None:
        try:
            while (message := self._connection.recv()) != STOP:
                self._tasks.put(message)
            self._reason = "the batch ends"
        except (EOFError, OSError):
            self._reason = "the process that started this worker is gone"
        self._tasks.put(None)

    def next_task(self) -> Task | None:
        """Return the next task, or None if there will be no more."""
        return self._tasks.get()

    def stop_reason(self) -> str | None:
        return self._reason

    def send(self, message: Report | str) -> None:
        with self._sending, contextlib.suppress(OSError):  # the driver is gone; the run is saved anyway
            self._connection.send(message)


def _limit_threads(num: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(num))
