"""Fixtures for tests of the command line: commands run in this process, and runs are created through the public API."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm

from trainmaster.cli import main
from trainmaster.store import Store


class Result(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own folder, with $TRAINMASTER_STORE unset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINMASTER_STORE", raising=False)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command in this process and returns its exit code, stdout and stderr."""

    def call(*args: object) -> Result:
        capsys.readouterr()
        code = main([str(each) for each in args])
        found = capsys.readouterr()
        return Result(code, found.out, found.err)

    return call


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store at the default path."""
    return Store(tmp_path / "runs")


class Maker:
    """Creates runs without training anything."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def new(self, **config: Any) -> str:
        return self.store.configs.add(config)

    def run(
        self,
        config: Mapping[str, Any],
        metrics: Sequence[Mapping[str, float]] = ({"loss": 1.0},),
        outcome: str = "finished",
        by: str = "process",
        log: str = "",
        status: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> str:
        """Create a run with one attempt and one epoch for each item in `metrics`."""
        key = self.store.configs.add(config)
        with self.store.attempt(key, by) as attempt:
            attempt.start(self.store.run(key).latest())
            num_done = max(0, (self.store.run(key).status() or {"epoch": 0})["epoch"])  # a new run has the epoch -1
            for epoch, numbers in enumerate(metrics, num_done + 1):
                attempt.log.append({"epoch": epoch, "time": time.time(), "eval": dict(numbers)})
                attempt.save(epoch, {"x": 1}, {"epoch": epoch, "toc": time.time(), **(status or {})}, numbers)
            if log:
                self.print(key, attempt.number, log)
            attempt.release(outcome, **facts)
        return key

    def print(self, key: str, number: int, text: str) -> None:
        appender = self.store.files.append(self.store.run(key).path(number, "log"))
        appender.write(text.encode("utf-8", "surrogateescape"))
        appender.close()

    def killed(self, config: Mapping[str, Any]) -> str:
        """Create a run whose process was killed during its first attempt."""
        key = self.store.configs.add(config)
        code = (
            "import os, sys; from trainmaster.store import Store; store = Store(sys.argv[1]); "
            "attempt = store.attempt(sys.argv[2], 'process').__enter__(); attempt.start(None); os._exit(9)"
        )
        warm.run([sys.executable, "-c", code, str(self.store.root), key])
        return key


@pytest.fixture
def make(store: Store) -> Maker:
    return Maker(store)


_HOLD = """
import sys
from trainmaster.store import Store
store = Store(sys.argv[1])
with store.attempt(sys.argv[2], "process") as attempt:
    attempt.start(store.run(sys.argv[2]).latest())
    print("held", flush=True)
    sys.stdin.read()
    attempt.release("finished")
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Store, str], subprocess.Popen[str]]]:
    """Return a function that starts a process that holds a run until its stdin is closed, and then finishes it."""
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
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def program() -> Call:
    """Return a function that runs `trainmaster` in a subprocess.

    `shell` is shell code, such as a pipe, that is appended to the command.
    """

    def program(*args: object, shell: str = "", **environment: str) -> Result:
        command: list[str] = [sys.executable, "-m", "trainmaster", *map(str, args)]
        if shell:
            command = ["bash", "-c", f"{shlex.join(command)} {shell}"]
        run = subprocess.run if shell or {*environment} & {*warm.READ_AT_START} else warm.run
        env = {**os.environ, **environment}
        found = run(command, capture_output=True, env=env, timeout=300, stdin=subprocess.DEVNULL)
        return Result(found.returncode, found.stdout.decode(), found.stderr.decode())

    return program
