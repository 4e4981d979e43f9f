"""Writes all metrics and texts to TensorBoard event files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from trainmaster.errors import MissingExtraError
from trainmaster.extensions.train_dir import mirrored_writer, required_path
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer, always

FOLDER = "tensorboard"
_SUFFIX = ".trainmaster"
"""The suffix of the files that this extension writes. The extension does not change other files in the folder."""


class TensorBoard(Observer):
    """Copies all logged metrics and texts to event files in `path`, or in the folder `tensorboard` of the loop's `train_dir`.

    When a run resumes, the files are rewritten from the log, so no value appears twice, no matter how many times the
    run was killed.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._writer: Any = None
        self._folder: Path | None = None
        self._detach: Callable[[], None] | None = None

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._folder = required_path(self.path, loop, FOLDER, "TensorBoard")
        mirrored = mirrored_writer(writer, "TensorBoard")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("TensorBoard needs: pip install 'trainmaster[tensorboard]'") from None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for file in self._folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                file.unlink()
            self._writer = SummaryWriter(str(self._folder), filename_suffix=_SUFFIX)
        except OSError as error:
            self._give_up(error)
        else:
            self._detach = mirrored.mirror(self._add)

    def _add(self, tag: str, value: float | str, step: int | None) -> None:
        self._call("add_text" if isinstance(value, str) else "add_scalar", tag, value, step)

    def post_train_step_epoch(self) -> None:
        self._call("flush")

    @always
    def post_run(self) -> None:  # not in `post_train`, where other extensions may still record metrics
        if self._detach is not None:
            self._detach()
            self._detach = None
        self._call("close")
        self._writer = None

    def _call(self, method: str, *values: Any) -> None:
        """Call a method of the writer.

        If the call fails, for example because the disk is full, training continues without event files.
        """
        try:
            if self._writer is not None:
                getattr(self._writer, method)(*values)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        warnings.warn(f"TensorBoard stops writing event files to {self._folder}: {error.strerror or error}", stacklevel=4)
