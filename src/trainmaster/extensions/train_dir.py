"""Finds the path and the writer that an extension uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainmaster.errors import SettingError
from trainmaster.loop.loggers import Mirrored
from trainmaster.loop.writer import Writer


def path_in_train_dir(path: Path | None, loop: Any, name: str) -> Path | None:
    """Return `path` if it is set, otherwise `name` in the loop's `train_dir`, or None if the loop has no `train_dir`."""
    train_dir = getattr(loop, "train_dir", None)
    if path is not None:
        return path
    return None if train_dir is None else Path(train_dir) / name


def required_path(path: Path | None, loop: Any, name: str, extension: str) -> Path:
    """Return the same path as `path_in_train_dir`. Raises an error if that is None."""
    required = path_in_train_dir(path, loop, name)
    if required is None:
        raise SettingError(f"{extension} has no path to write to", hint=f"pass the loop a train_dir, or pass {extension} a path")
    return required


def mirrored_writer(writer: Writer | None, extension: str) -> Mirrored:
    """Return the loop's writer if an extension can copy metrics from it. Raises an error otherwise."""
    if isinstance(writer, Mirrored):
        return writer
    fact = "this loop has no writer" if writer is None else f"{type(writer).__name__} has no method `mirror`"
    hint = "use it with a TrainManager" if writer is None else "remove the loop's argument `writer`; TensorBoard() writes event files"
    raise SettingError(f"{extension} copies metrics from the loop's writer, but {fact}", hint=hint)
