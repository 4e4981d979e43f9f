"""A folder of checkpoints of one training, without a store around it: `3.ckpt` after epoch 3, `3+120.ckpt` after 120 batches more.

Each is committed as in a store: its files, then the manifest. The newest is the one that was saved last, whatever its epoch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainmaster.errors import RunBusyError, StoreDamagedError, did_you_mean
from trainmaster.store.checkpoint import MANIFEST, manifest_in, read_values, write_checkpoint
from trainmaster.store.files import LocalFiles
from trainmaster.store.record import Record

_NAME = re.compile(r"(\d{1,12})(?:\+(\d{1,12}))?(?:-([2-9]|[1-9]\d{1,8}))?\.ckpt")
_LOCK = ".lock"
_DAMAGED = 10**15


class SavedAt(NamedTuple):
    """When a checkpoint was saved: after so many epochs, and so many batches of the next."""

    epoch: int
    batch: int = 0
    repeat: int = 1
    """Which one of the same moment it is, from 1 on."""

    @property
    def text(self) -> str:
        """
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
    """The checkpoints below `root`, which is made with the first of them."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._files = LocalFiles(self.root)

    def __repr__(self) -> str:
        return f"CheckpointFolder({self.root!r})"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other trainings of this machine from saving here; the kernel ends it with the process."""
        self._files.make_root()
        fd = os.open(os.path.join(self.root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusyError(
                    "another training saves into this folder", where=self.root, hint="wait for it, or give another train_dir"
                ) from None
            yield
        finally:
            os.close(fd)

    def names(self) -> list[SavedAt]:
        """The checkpoints that are there, the one that was saved last first."""
        return sorted(filter(self._is_whole, self._folders()), key=self._order, reverse=True)

    def _folders(self) -> list[SavedAt]:
        found = (SavedAt.parse(text) for text in (self._files.names("") if os.path.isdir(self.root) else []))
        return [name for name in found if name is not None]

    def _is_whole(self, name: SavedAt) -> bool:
        """Whether its save came to its end: without a manifest there is no checkpoint."""
        return self._files.has(f"{name.text}/{MANIFEST}")

    def _order(self, name: SavedAt) -> tuple[int, SavedAt]:
        """One whose manifest is damaged comes first, so that it is told."""
        try:
            return int(manifest_in(self._files, name.text)["events"]), name
        except StoreDamagedError:
            return _DAMAGED, name

    def save(self, at: SavedAt, value: Any, facts: Record) -> SavedAt:
        """Commit a checkpoint; one of the same moment is left as it is, and this one has a number."""
        for name in self._folders():
            if not self._is_whole(name):  # what a kill has left
                self._files.delete_folder(name.text)
        existing = [self._order(name) for name in self._folders()]
        at = at._replace(repeat=max((name.repeat + 1 for _, name in existing if name[:2] == at[:2]), default=1))
        order = 1 + max((order for order, _ in existing if order < _DAMAGED), default=0)
        record = {"key": "", "attempt": 0, "token": "", "step": at.epoch, "events": order, "preview": {}, "status": facts}
        try:
            write_checkpoint(self._files, at.text, value, None, record, lambda: None)
        except BaseException:
            if not self._is_whole(at):
                self._files.delete_folder(at.text)
            raise
        return at

    def drop(self, name: SavedAt) -> None:
        self._files.delete(f"{name.text}/{MANIFEST}")  # first: half a checkpoint is none
        self._files.delete_folder(name.text)

    def load(self, name: SavedAt) -> Any:
        """The value of a checkpoint; `FileNotFoundError` where there is none."""
        if name not in self.names():
            near = did_you_mean(name.text, [each.text for each in self.names()])
            raise FileNotFoundError(f"there is no checkpoint {os.path.join(self.root, name.text)}; {near}".rstrip("; "))
        return read_values(self._files, name.text, manifest_in(self._files, name.text))[0]
