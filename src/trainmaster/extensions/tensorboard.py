"""Everything that is recorded, as TensorBoard's event files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.loop.writer import Mirrored, Writer
from trainmaster.stages import Observer, always

FOLDER = "tensorboard"
_SUFFIX = ".trainmaster"
"""How the names of our files end: others in the folder are left alone."""


class TensorBoard(Observer):
    """Mirrors all numbers and texts that are recorded to event files, in `tensorboard` below the loop's `train_dir`, or in `path`.

    The files are a copy and never the truth: when a training is taken up they are written anew, from what it has recorded so far. So
    nothing is in them twice, however often it was killed.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        if path is not None and (not isinstance(path, str | PathLike) or not os.fspath(path)):
            raise SettingError(f"path={path!r}: wanted a folder", hint=f"leave it out: it is `{FOLDER}` below train_dir")
        self.path = None if path is None else Path(os.fspath(path))
        self._writer: Any = None
        self._folder: Path | None = None
        self._stop: Callable[[], None] | None = None

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        train_dir = getattr(loop, "train_dir", None)
        folder = self.path if self.path is not None else None if train_dir is None else Path(train_dir) / FOLDER
        if folder is None:
            raise SettingError("TensorBoard has no folder to write to", hint="give the loop a train_dir, or TensorBoard a path")
        if not isinstance(writer, Mirrored):
            raise SettingError(
                "TensorBoard mirrors what the loop's writer records, and "
                + ("this loop has none" if writer is None else f"cannot listen to {type(writer).__name__}"),
                hint="use it with a TrainManager" if writer is None else "leave `writer` out",
            )
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard needs: pip install 'trainmaster[tensorboard]'") from None
        with self._giving_up(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                file.unlink()
            self._writer = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        if self._writer is not None:
            self._folder = folder
            self._stop = writer.mirror(self._take)

    def _take(self, tag: str, value: float | str, step: int | None) -> None:
        with self._giving_up(self._folder):
            if self._writer is None:
                return
            if isinstance(value, str):
                self._writer.add_text(tag, value, step)
            else:
                self._writer.add_scalar(tag, value, step)

    def post_train_step_epoch(self) -> None:
        with self._giving_up(self._folder):
            if self._writer is not None:
                self._writer.flush()

    @always
    def post_train(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        with self._giving_up(self._folder):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    @contextmanager
    def _giving_up(self, folder: Path | None) -> Iterator[None]:
        """A copy that cannot be written, on a full disk for example, is no reason to stop training."""
        try:
            yield
        except OSError as error:
            self._writer = None
            warnings.warn(f"no more event files are written to {folder}: {error.strerror or error}", stacklevel=3)
