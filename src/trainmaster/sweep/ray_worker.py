"""`RayWorker`: the actor that trains runs on a node of a Ray cluster.

Ray sends the code of the actor to the node, so the actor can report what is missing, even if trainmaster is not
installed on the node. For this reason, this file imports only the standard library at the top.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import socket
import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

_MERGE_TIME = 0.3
"""The number of seconds for which reports are collected before they are sent together, because each message takes time on both sides."""
_MACHINE_VARIABLES = (
    *("HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV", "_"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "OMP_NUM_THREADS",
)
_MACHINE_PREFIXES = ("DBUS_", "LC_", "LD_", "RAY_", "SLURM_", "SSH_", "XDG_")
"""Environment variables that are specific to a node, or that Ray sets for each worker."""


class Place(NamedTuple):
    """The driver's settings that a worker applies before it imports anything."""

    path: tuple[str, ...]
    """The driver's `sys.path`. Some of its entries may not exist on a node."""
    folder: str
    environment: Mapping[str, str]
    main: str | None
    """The driver's script, or None in a notebook."""
    store: str
    probe: str
    """A file in the store that contains `token`. Workers read it to check that they see the same store."""
    token: str
    versions: Mapping[str, str]


class Readiness(NamedTuple):
    """A worker's report on whether its node can train runs."""

    node: str
    problem: str = ""
    """Why the node cannot train runs. Empty if it can."""
    hint: str = ""
    note: str = ""


class RayWorker:
    """Builds a manager on its node and runs tasks, one at a time.

    `listen` and `stop` are called while `run` is running, so they use a separate concurrency group.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: list[Any] = []
        self._reason: str | None = None
        self._manager: Any = None
        self._stack = contextlib.ExitStack()

    def prepare(self, place: Place, setup: bytes) -> Readiness:
        """Apply the driver's settings, check the node, and build the manager."""
        node = f"{socket.gethostname()} (process {os.getpid()})"
        note = enter(place)
        found = find_versions()
        wrong = [
            f"{name} {found.get(name, 'missing')} instead of {wanted}"
            for name, wanted in place.versions.items()
            if found.get(name) != wanted
        ]
        if wrong:
            return Readiness(node, f"it has {', '.join(wrong)}", "install the same versions on the driver and on all nodes")
        problem = _check_store(place)
        if problem:
            return Readiness(node, problem, "put the store on a folder that the driver and all nodes mount at the same path")
        try:
            loaded = pickle.loads(setup)
            manager = self._stack.enter_context(loaded._replace(path=tuple(sys.path)).manager(self._report, self._stop_reason))
        except Exception as error:  # the user's code may raise any error
            hint = "install it on all nodes, or put it on a folder that all nodes mount" if isinstance(error, ImportError) else ""
            return Readiness(node, f"the manager cannot be built there: {type(error).__name__}: {error}", hint)
        if os.path.realpath(manager.store.root) != os.path.realpath(place.store):
            return Readiness(node, f"its manager uses the store {manager.store.root}", f"give the manager the full path {place.store}")
        self._manager = manager
        return Readiness(node, note=note)

    def run(self, task: bytes) -> list[Any]:
        """Run a task, and return those of its reports that `listen` has not returned yet."""
        loaded = pickle.loads(task)
        if self._reason is not None:
            from trainmaster.manager.executor import Report

            return [Report(loaded.job.key, "stopped", self._reason)]
        report = self._manager.job_runner.run_task(loaded)
        with self._changed:
            reports, self._reports = self._reports, []
        return [*reports, report._replace(error=None)]  # the report also has the error as text; the error object may not be picklable

    def listen(self, timeout: float) -> list[Any]:
        """Return the new reports of the current task. If there are none yet, wait up to `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._reports, timeout)
            self._changed.wait_for(lambda: any(each.kind == "claimed" for each in self._reports), _MERGE_TIME if self._reports else 0.0)
            reports, self._reports = self._reports, []
        return reports

    def stop(self, reason: str) -> None:
        """Ask the current run to save and stop. After this, the worker does not start another run."""
        self._reason = reason

    def _report(self, report: Any) -> None:
        with self._changed:
            self._reports.append(report)
            self._changed.notify_all()

    def _stop_reason(self) -> str | None:
        return self._reason


def enter(place: Place) -> str:
    """Apply the driver's settings to this process. Return a note if the driver's working folder does not exist on this node."""
    sys.path[:] = dict.fromkeys([*place.path, *sys.path])
    os.environ.update(place.environment)
    main = ModuleType("__main__")  # classes in the driver's script are pickled by value, and their runs record this file
    if place.main is not None:
        main.__file__ = place.main
    sys.modules["__main__"] = main
    try:
        os.chdir(place.folder)
    except OSError:
        return f"it has no folder {place.folder}; relative paths start at {os.getcwd()}"
    return ""


def shared_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the driver passes to its workers, without those that are specific to a machine.

    >>> shared_environment({"PATH": "/bin", "RAY_ADDRESS": "auto", "DATA": "/data"})
    {'DATA': '/data'}
    """
    return {name: value for name, value in environment.items() if name not in _MACHINE_VARIABLES and not name.startswith(_MACHINE_PREFIXES)}


def find_versions() -> dict[str, str]:
    """Return the versions of Python, torch and trainmaster, which must be the same on all machines."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    with contextlib.suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    with contextlib.suppress(ImportError):
        import trainmaster

        found["trainmaster"] = trainmaster.__version__
    return found


def _check_store(place: Place) -> str:
    """Return why this machine cannot use the store, or an empty string if it can."""
    try:
        with open(place.probe) as file:
            if file.read() != place.token:
                return f"its folder {place.store} is not the driver's store"
    except OSError as error:
        return f"it does not see the store {place.store}: {error.strerror}"
    return "" if os.access(place.store, os.W_OK) else f"it cannot write to the store {place.store}"
