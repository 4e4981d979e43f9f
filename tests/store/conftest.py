"""Fixtures for tests of the store: both kinds of stores, interruptible files, and processes that hold a run."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

from trainmaster.errors import RunBusyError
from trainmaster.store import Attempt, Store
from trainmaster.store.attempt import claim
from trainmaster.store.attempt_records import ATTEMPT
from trainmaster.store.checksummed_json import record_bytes
from trainmaster.store.files import Files
from trainmaster.store.run import Run

_HOLD = """
import sys
from trainmaster.store import Store
store = Store(sys.argv[1])
with store.attempt(sys.argv[2], "another process") as attempt:
    attempt.start(store.run(sys.argv[2]).latest())
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(None if request.param == "memory" else tmp_path / "store")


@pytest.fixture
def disk(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def held_elsewhere() -> Iterator[Callable[[Store, str], subprocess.Popen[str]]]:
    """Return a function that starts a process that holds a run until it is killed or its input ends."""
    started: list[subprocess.Popen[str]] = []

    def hold(store: Store, key: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _HOLD, str(store.root), key]
        process = warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


class Interrupted:
    """Files that call `act` before the first call to `method` with a path that ends in `ending`.

    If `act` raises an error, so does that call.
    """

    def __init__(self, files: Files, method: str, ending: str, act: Callable[[], Any]) -> None:
        self._files, self._method, self._ending = files, method, ending
        self._act: Callable[[], Any] | None = act

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)

        def call(path: str, *args: Any) -> Any:
            if self._act is not None and path.endswith(self._ending):
                act, self._act = self._act, None
                act()
            return method(path, *args)

        return call if name == self._method else method


class Counted:
    """Files that count the calls to each method."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.calls: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._files, name)


@pytest.fixture
def before() -> Callable[..., Any]:
    return Interrupted


@pytest.fixture
def counted() -> Callable[[Files], Any]:
    return Counted


@pytest.fixture
def crash() -> Callable[[Attempt], None]:
    """Return a function that leaves an attempt as a killed process would: without heartbeats and without an outcome."""

    def crash(attempt: Attempt) -> None:
        attempt._heartbeat.stop()
        attempt.log.close()

    return crash


@pytest.fixture
def take() -> Iterator[Callable[..., Attempt]]:
    """Return a function that creates an attempt that resumes from the run's last checkpoint.

    If another attempt holds the run, the new one replaces it, as if its lease had expired.
    """
    taken: list[Attempt] = []

    def take(files: Files, key: str) -> Attempt:
        run = Run(files, key)
        try:
            attempt = claim(run, "test", 60.0)
        except RunBusyError:
            attempt = Attempt(run, run.newest() + 1, "test", 10.0)
        taken.append(attempt)
        attempt.start(attempt.run.latest())
        return attempt

    yield take
    for attempt in taken:
        attempt._heartbeat.stop()
        attempt.log.close()


@pytest.fixture
def save() -> Callable[..., None]:
    """Return a function that saves a checkpoint whose value, status and preview depend on its step."""

    def save(attempt: Attempt, step: int, value: Any = ..., keep: int = 3) -> None:
        value = {"step": step} if value is ... else value
        attempt.save(step, value, {"epoch": step, "toc": 0.0, "t_train": None, "t_eval": None}, {"loss": 1 / (step + 1)}, keep=keep)

    return save


@pytest.fixture
def claimed_by() -> Callable[..., str]:
    """Return a function that writes a claim with the given owner and returns its path."""

    def claimed_by(store: Store, key: str, number: int = 1, heartbeat: float = 10.0, **owner: Any) -> str:
        path = store.run(key).path(number, ATTEMPT)
        owner = {"host": "elsewhere", "boot": "another boot", "pid": 1, "start": "1", **owner}
        claim = {"key": key, "attempt": number, "token": "0" * 32, "by": "test", "owner": owner, "heartbeat": heartbeat}
        store.files.create(path, record_bytes(claim))
        return path

    return claimed_by
