"""The archives `stats`, `ckpts` and `previews`. Each behaves like a dict that maps the keys of runs to records."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from trainmaster.errors import StoreDamagedError, StoreError, UnknownRunError
from trainmaster.store.attempt import Attempt
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, is_key, stored_keys
from trainmaster.store.run import Run

Value = TypeVar("Value")
Writing = Callable[[str], AbstractContextManager[Attempt]]
"""A function that takes a key and returns a context manager, inside which the caller may write to the run."""
Reset = Callable[[str, Callable[[Run], Any]], Any]
"""A function that takes a key and a reader.

The function calls the reader with the run, resets the run, and returns the reader's result.
"""


class RunArchive(ABC, Generic[Value]):
    """A dict-like archive that maps the key of each run to one record.

    Writing a record raises an error while another process holds the run.
    """

    _noun = "value"

    def __init__(self, files: Files, writing: Writing, reset: Reset) -> None:
        self._files, self._writing, self._reset = files, writing, reset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(vars(self).get('_files'), 'root', None)!r})"

    @abstractmethod
    def _read(self, run: Run) -> Value | None: ...

    @abstractmethod
    def _write(self, attempt: Attempt, value: Any) -> None: ...

    def __getitem__(self, key: str) -> Value:
        value = self._read(Run(self._files, check_key(key)))
        if value is None:
            raise UnknownRunError(f"run {key} has no {self._noun} yet", hint="`process` trains it; `configs` has all configs")
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        with self._writing(check_key(key)) as attempt:
            self._write(attempt, value)

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self._read(Run(self._files, str(key))) is not None

    def get(self, key: str, default: Any = None) -> Any:
        value = self._read(Run(self._files, key)) if is_key(key) else None
        return default if value is None else value

    def pop(self, key: str, *default: Any) -> Any:
        """Return the value and reset the run. The run's checkpoints, stats and preview depend on each other, so all of them are deleted.

        The config is kept, so the run can be started again. If there is no value, return `default`, or raise an error if
        no default was passed. Also raise an error if a process holds the run.
        """
        if key not in self:
            return default[0] if default else self[key]  # raises the error
        return self._reset(key, self._read)

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """Yield the keys of all runs that have a value, in random order."""
        return (key for key in stored_keys(self._files, "stats") if _readable(key, self.__contains__))

    def values(self) -> Iterator[Value]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[str, Value]]:
        for key in stored_keys(self._files, "stats"):
            value = _readable(key, lambda key: self._read(Run(self._files, key)))
            if value is not None:
                yield key, value

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True


class StatsArchive(RunArchive[dict[str, Any]]):
    """The progress of each run: `epoch`, `toc` (time of the last save or claim), `t_train` and `t_eval` (running means in seconds)."""

    _noun = "stats"

    def _read(self, run: Run) -> dict[str, Any] | None:
        return run.status()

    def __setitem__(self, key: str, value: Any) -> None:
        raise StoreError(
            f"the stats of run {check_key(key)} cannot be set: they are derived from its checkpoints",
            hint="save a checkpoint: `ckpts[key] = ...`",
        )

    def _write(self, attempt: Attempt, value: Any) -> None:
        raise NotImplementedError


class CheckpointArchive(RunArchive[Any]):
    """The newest undamaged checkpoint of each run."""

    _noun = "checkpoint"

    def _read(self, run: Run) -> Any | None:
        latest = run.latest()
        return None if latest is None else latest.value

    def _write(self, attempt: Attempt, value: Any) -> None:
        status = attempt.run.status()
        assert status is not None  # every run with an attempt has a status
        epoch = max(0, status["epoch"])
        attempt.save(epoch, value, {**status, "epoch": epoch, "toc": time.time()}, attempt.run.preview() or {})

    def __contains__(self, key: object) -> bool:
        return is_key(key) and bool(Run(self._files, str(key)).checkpoints())


class PreviewArchive(RunArchive[dict[str, Any]]):
    """The preview of each run: its latest metrics, which can be read without loading a checkpoint."""

    _noun = "preview"

    def pop(self, key: str, *default: Any) -> Any:
        """Return the preview of a run and replace it with an empty one. The run's checkpoints and stats are kept."""
        if key not in self:
            return default[0] if default else self[key]  # raises the error
        with self._writing(key) as attempt:
            value = self._read(attempt.run)
            self._write(attempt, {})
        return value

    def _read(self, run: Run) -> dict[str, Any] | None:
        return run.preview()

    def _write(self, attempt: Attempt, value: Mapping[str, Any]) -> None:
        attempt.publish_preview(value)


def _readable(key: str, read: Callable[[str], Any]) -> Any:
    """Return the result of `read` for a run. For a damaged run, return None and warn, so that the other runs can still be read."""
    try:
        return read(key)
    except StoreDamagedError as error:
        warnings.warn(f"run {key} is skipped: {error.fact}: {error.rows.get('why', '')}", stacklevel=3)
        return None
