"""The archives of what runs leave: `stats`, `ckpts` and `previews`, by key, like dicts."""

from __future__ import annotations

import random
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from trainmaster.errors import StoreDamagedError, StoreError, UnknownRunError
from trainmaster.store.attempt import Attempt
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, is_key
from trainmaster.store.run import Run

Value = TypeVar("Value")
Writing = Callable[[str], AbstractContextManager[Attempt]]
"""The right to write to the run of a key, for a moment."""


class RunArchive(ABC, Generic[Value]):
    """Something of every run, by key. Reading follows the attempts that count; writing takes the run's lease, so it may be refused."""

    def __init__(self, files: Files, writing: Writing) -> None:
        self._files, self._writing = files, writing

    @abstractmethod
    def _read(self, run: Run) -> Value | None: ...

    @abstractmethod
    def _write(self, attempt: Attempt, value: Any) -> None: ...

    def __getitem__(self, key: str) -> Value:
        found = self._read(Run(self._files, check_key(key)))
        if found is None:
            raise UnknownRunError(f"run {key} has none yet", hint="`process` trains it; `configs` has all configs")
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        with self._writing(check_key(key)) as attempt:
            self._write(attempt, value)

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self._read(Run(self._files, str(key))) is not None

    def get(self, key: str, default: Any = None) -> Any:
        found = self._read(Run(self._files, check_key(key)))
        return default if found is None else found

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """The keys of all runs that have one, in random order."""
        return (key for key in _runs(self._files) if _readable(key, self.__contains__))

    def values(self) -> Iterator[Value]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[str, Value]]:
        for key in _runs(self._files):
            value = _readable(key, lambda key: self._read(Run(self._files, key)))
            if value is not None:
                yield key, value

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True


class StatsArchive(RunArchive[dict[str, Any]]):
    """How far each run is: `epoch`, `toc` (when it was last saved or claimed), `t_train` and `t_eval` (running means, in seconds)."""

    def _read(self, run: Run) -> dict[str, Any] | None:
        return run.status()

    def __setitem__(self, key: str, value: Any) -> None:
        raise StoreError(
            f"the stats of run {check_key(key)} follow from its checkpoints, and cannot be set",
            hint="save a checkpoint: `ckpts[key] = ...`",
        )

    def _write(self, attempt: Attempt, value: Any) -> None:
        raise NotImplementedError


class CheckpointArchive(RunArchive[Any]):
    """The last good checkpoint of each run."""

    def _read(self, run: Run) -> Any | None:
        latest = run.latest()
        return None if latest is None else latest.value

    def _write(self, attempt: Attempt, value: Any) -> None:
        status = attempt.run.status()
        assert status is not None  # the attempt itself is one
        epoch = max(0, status["epoch"])
        attempt.save(epoch, value, {**status, "epoch": epoch, "toc": time.time()}, attempt.run.preview() or {})

    def __contains__(self, key: object) -> bool:
        return is_key(key) and bool(Run(self._files, str(key)).checkpoints())


class PreviewArchive(RunArchive[dict[str, Any]]):
    """What is worth knowing of each run without loading its checkpoint."""

    def _read(self, run: Run) -> dict[str, Any] | None:
        return run.preview()

    def _write(self, attempt: Attempt, value: Mapping[str, Any]) -> None:
        attempt.publish_preview(value)


def _readable(key: str, read: Callable[[str], Any]) -> Any:
    """What `read` says of a run; None, with a warning, of a damaged one: that is no reason to keep the others back."""
    try:
        return read(key)
    except StoreDamagedError as error:
        warnings.warn(f"run {key} is left out: {error.fact}: {error.rows.get('why', '')}", stacklevel=3)
        return None


def _runs(files: Files) -> Iterator[str]:
    """The keys of all runs that were ever started."""
    folders = [name for name in files.names("stats") if len(name) == 2]
    random.SystemRandom().shuffle(folders)
    for folder in folders:
        yield from (name for name in files.names(f"stats/{folder}") if is_key(name) and name.startswith(folder))
