"""What runs in a worker's process: it makes the manager once, and trains one run after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trainmaster.manager.executor import Report, Task
from trainmaster.manager.launch import Launch
from trainmaster.manager.printed import Printed
from trainmaster.manager.recipe import ManagerRecipe

READY, STOP = "ready", "stop"


class Setup(NamedTuple):
    """What a worker needs to begin."""

    recipe: bytes
    path: tuple[str, ...]
    """Where modules are found."""
    num_threads: int
    start_method: str | None
    """How processes start others, where they say nothing: a loader its workers, say."""
    launch: Launch
    """How the driver was started; what it listens to is its own."""


def serve(connection: Connection, setup: Setup) -> None:
    """Make the manager, say so, and do what comes, until the driver says that it is over, or is gone."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C goes to the driver, who tells the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.path[:] = setup.path
    multiprocessing.set_start_method(setup.start_method, force=True)  # "spawn" by now
    inbox = Inbox(connection)
    manager = ManagerRecipe(*pickle.loads(setup.recipe)).make()
    _use_threads(setup.num_threads)
    manager.hush()
    with Printed(manager.keep_text) as printed:
        manager.launched(replace(setup.launch, tell=inbox.send, asked=inbox.asked, flush=printed.flush))
        inbox.send(READY)
        while (task := inbox.next()) is not None and inbox.asked() is None:
            report = manager.do(task)
            inbox.send(report._replace(error=None))  # an error may not survive the way; its text does


class Inbox:
    """What the driver says, read in a thread: a request to stop must be heard while a run is trained."""

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
            self._reason = "the batch is to end"
        except (EOFError, OSError):
            self._reason = "the process that started this worker is gone"
        self._tasks.put(None)

    def next(self) -> Task | None:
        """The next task; None when there will be none."""
        return self._tasks.get()

    def asked(self) -> str | None:
        """Why work should end, if it should."""
        return self._reason

    def send(self, message: Report | str) -> None:
        with self._sending, contextlib.suppress(OSError):  # nobody listens any more: what was trained is saved all the same
            self._connection.send(message)


def _use_threads(num: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(num))
