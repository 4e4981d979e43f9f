"""The destinations for a loop's checkpoints: a protocol for all destinations, and a folder for training without a store.

In such a folder, `3.ckpt` is the checkpoint after epoch 3, and `3+120.ckpt` is the one after 120 more batches.
`checkpoint.py` writes, prunes and reads these checkpoints, as it does for a store. The newest checkpoint is the one that was saved
last, regardless of its epoch.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainmaster.errors import RunBusyError, StoreDamagedError, did_you_mean
from trainmaster.store.checkpoint import MANIFEST, CheckpointName, Pruner, manifest_in, read_values, write_checkpoint
from trainmaster.store.checksummed_json import Record
from trainmaster.store.files import LocalFiles

_NAME = re.compile(r"(\d{1,12})(?:\+(\d{1,12}))?(?:-([2-9]|[1-9]\d{1,8}))?\.ckpt")
_LOCK = ".lock"
_DAMAGED = 10**15


class Moment(NamedTuple):
    """A point in training, described by the numbers of completed epochs, batches and updates."""

    epoch: int
    """The number of completed epochs."""
    batch: int
    """The number of completed batches in the current, unfinished epoch."""
    step: int
    """The number of completed updates."""
    is_evaluated: bool
    """Whether the evaluation after the last completed epoch has finished."""


class Best(NamedTuple):
    """The best checkpoint so far, and the metric by which it was chosen."""

    metric: str
    value: float
    epoch: int
    name: Any
    """The name of the checkpoint at its destination."""
    mode: str = "min"

    def to_record(self, checkpoint: str | None) -> Record:
        """Return this object as a dict for the status of a run. `checkpoint` is the name of the checkpoint as text."""
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "epoch": self.epoch, "checkpoint": checkpoint}


def is_better(value: float, metric: str, mode: str, best: Best | None) -> bool:
    """Return whether a checkpoint with this value is better than the best one so far. NaN and infinite values are never better."""
    if best is None or best.metric != metric or not math.isfinite(value):
        return math.isfinite(value)
    return value > best.value if mode == "max" else value < best.value


def best_record(best: Best) -> Record:
    """Return the best checkpoint as a dict for the status of a run in a store, including its step and attempt."""
    name = CheckpointName(*best.name)
    return {**best.to_record(name.text), "step": name.step, "attempt": name.attempt}


class CheckpointDestination(Protocol):
    """Where a `CheckpointSaver` saves its checkpoints.

    `save` is called in a separate thread, one call at a time. All other methods are called in the training thread.
    """

    @property
    def path(self) -> Path | None:
        """The folder that contains the checkpoints, or None if they are kept in memory."""

    def open(self) -> None:
        """Prepare for saving. Raise an error if another process is saving to the same destination."""

    def facts(self) -> Any:
        """Return facts that `save` needs later, such as the number of events logged so far.

        This is called when the state to be saved is captured.
        """

    def next_name(self, moment: Moment) -> Any:
        """Return the name of the next checkpoint. This is called only while nothing is being saved."""

    def save(self, moment: Moment, value: dict[str, Any], facts: Any, best: Best | None, replaced: Any = None) -> None:
        """Commit a checkpoint. Then delete old checkpoints.

        `replaced` is the name of an earlier checkpoint of the same state. It is deleted too.
        """

    def close(self) -> None: ...


def status_of(moment: Moment, best: Best | None, best_name: str | None) -> Record:
    """Return the status for the manifest of a checkpoint: the training progress, and the best checkpoint so far."""
    status: Record = {"epoch": moment.epoch, "step": moment.step, "batch": moment.batch}
    if best is not None:
        status["best"] = best.to_record(best_name)
    return status


class SavedAt(NamedTuple):
    """The name of a checkpoint in a folder.

    It contains the number of completed epochs, and the number of completed batches in the unfinished epoch.
    """

    epoch: int
    batch: int = 0
    repeat: int = 1
    """1 for the first checkpoint at this epoch and batch, 2 for the second one, ..."""

    @property
    def text(self) -> str:
        """The name of the checkpoint on disk.

        >>> SavedAt(3).text, SavedAt(3, 120).text, SavedAt(3, 0, 2).text
        ('3.ckpt', '3+120.ckpt', '3-2.ckpt')
        """
        return f"{self.epoch}{f'+{self.batch}' if self.batch else ''}{f'-{self.repeat}' if self.repeat > 1 else ''}.ckpt"

    @classmethod
    def parse(cls, text: str) -> SavedAt | None:
        found = _NAME.fullmatch(text)
        name = cls(int(found[1]), int(found[2] or 0), int(found[3] or 1)) if found else None
        return name if name is not None and name.text == text else None


class CheckpointFolder:
    """Saves checkpoints in the folder `root`. It keeps the last `keep` checkpoints and the best one, or all checkpoints if `keep` is None.

    The folder is created when needed.
    """

    def __init__(self, root: str | os.PathLike[str], keep: int | None = None) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.path = Path(self.root)
        self._keep = keep
        self._files = LocalFiles(self.root)
        self._pruner = Pruner[SavedAt](lambda name: name.text, "this training")
        self._lock = contextlib.ExitStack()

    def __repr__(self) -> str:
        return f"CheckpointFolder({self.root!r})"

    def open(self) -> None:
        """Lock the folder, so that no other process on this machine saves to it.

        The kernel releases the lock when the process ends.
        """
        self._lock.enter_context(self._locked())

    def close(self) -> None:
        self._lock.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._files.make_root()
        fd = os.open(os.path.join(self.root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusyError(
                    "another process is saving to this folder", where=self.root, hint="wait for it, or use another train_dir"
                ) from None
            yield
        finally:
            os.close(fd)

    def names(self) -> list[SavedAt]:
        """Return the complete checkpoints, most recently saved first."""
        return sorted(filter(self._is_complete, self._folders()), key=self._order, reverse=True)

    def _folders(self) -> list[SavedAt]:
        names = (SavedAt.parse(text) for text in (self._files.names("") if os.path.isdir(self.root) else []))
        return [name for name in names if name is not None]

    def _is_complete(self, name: SavedAt) -> bool:
        return self._files.has(f"{name.text}/{MANIFEST}")

    def _order(self, name: SavedAt) -> tuple[int, SavedAt]:
        """Return the sort key of a checkpoint. A checkpoint with a damaged manifest comes first, so that it is reported."""
        try:
            return int(manifest_in(self._files, name.text)["events"]), name
        except (StoreDamagedError, FileNotFoundError):  # FileNotFoundError: the checkpoint is being deleted
            return _DAMAGED, name

    def facts(self) -> None:
        return None

    def next_name(self, moment: Moment) -> SavedAt:
        repeats = [name.repeat for name in self._folders() if name[:2] == moment[:2] and self._is_complete(name)]
        return SavedAt(moment.epoch, moment.batch, max(repeats, default=0) + 1)

    def save(self, moment: Moment, value: Any, facts: None = None, best: Best | None = None, replaced: SavedAt | None = None) -> None:
        """Commit a checkpoint.

        If a checkpoint already exists for the same epoch and batch, keep both, and add a number to the new name.
        """
        for left in self._folders():
            if not self._is_complete(left):  # left behind by a process that was killed during a save
                self._files.delete_folder(left.text)
        name = self.next_name(moment)
        order = 1 + max((order for order, _ in map(self._order, self._folders()) if order < _DAMAGED), default=0)
        status = status_of(moment, best, None if best is None else SavedAt(*best.name).text)
        record = {"key": "", "attempt": 0, "token": "", "step": moment.step, "events": order, "preview": {}, "status": status}
        write_checkpoint(self._files, name.text, value, None, record, lambda: None)
        self._pruner.prune(self._files, self.names(), self._keep, () if best is None else [SavedAt(*best.name)], replaced)

    def best(self) -> SavedAt | None:
        """Return the best checkpoint, as recorded in the manifest of the newest checkpoint.

        Return None if no metric was monitored, or if the best checkpoint was deleted.
        """
        names = self.names()
        newest = next((name for name in names if self._order(name)[0] < _DAMAGED), None)
        best = None if newest is None else manifest_in(self._files, newest.text)["status"].get("best")
        name = None if best is None else SavedAt.parse(best["checkpoint"])
        return name if name in names else None

    def load(self, name: SavedAt) -> Any:
        """Return the value that was saved as a checkpoint. Raise `FileNotFoundError` if the checkpoint does not exist."""
        names = self.names()
        if name not in names:
            near = did_you_mean(name.text, [each.text for each in names])
            raise FileNotFoundError(f"there is no checkpoint {os.path.join(self.root, name.text)}; {near}".rstrip("; "))
        return read_values(self._files, name.text, manifest_in(self._files, name.text))[0]
