"""Everything that is recorded, as TensorBoard's event files."""

from __future__ import annotations

import os
from collections.abc import Callable
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
        self._stop: Callable[[], None] | None = None

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        train_dir = getattr(loop, "train_dir", None)
        folder = self.path if self.path is not None else None if train_dir is None else Path(train_dir) / FOLDER
        if folder is None:
            raise SettingError("TensorBoard has no folder to write to", hint="give the loop a train_dir, or TensorBoard a path")
        if not isinstance(writer, Mirrored):
            raise SettingError(
                f"TensorBoard mirrors what the loop's writer records, and cannot listen to {type(writer).__name__}",
                hint="leave `writer` out",
            )
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard needs: pip install 'trainmaster[tensorboard]'") from None
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            file.unlink()
        self._writer = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        self._stop = writer.mirror(self._take)

    def _take(self, tag: str, value: float | str, step: int | None) -> None:
        if isinstance(value, str):
            self._writer.add_text(tag, value, step)
        else:
            self._writer.add_scalar(tag, value, step)

    def post_train_step_epoch(self) -> None:
        self._writer.flush()

    @always
    def post_train(self) -> None:
        if self._stop is not None:
            stop, self._stop = self._stop, None
            stop()
            self._writer.close()
