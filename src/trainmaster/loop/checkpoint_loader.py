"""The default extension that takes a training up again where it was saved."""

from __future__ import annotations

import os
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.errors import SettingError, StateError, StoreDamagedError
from trainmaster.loop.checkpoint_saver import FOLDER, CheckpointSaver
from trainmaster.loop.checkpoints import Best
from trainmaster.loop.state import TrainingState
from trainmaster.stages import Extension
from trainmaster.store.checkpoint import MANIFEST, manifest_in, read_values
from trainmaster.store.checkpoint_folder import CheckpointFolder, SavedAt
from trainmaster.store.files import LocalFiles

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

LATEST = -1


class CheckpointLoader(Extension):
    """Restores a training that has not begun from a checkpoint: the latest, that of an epoch, or a file (E37).

    A latest that is missing is fine if `permissive`; a damaged one is passed over for the next older good one, with a warning. For an
    evaluation on its own only the weights are loaded.

    Args:
        path: the folder of checkpoints; by default that of the `CheckpointSaver`, or `checkpoints` below `train_dir`.
        ckpt_spec: -1 for the latest, the number of an epoch, or the path of a checkpoint.
    """

    def __init__(
        self, path: str | PathLike[str] | None = None, ckpt_spec: int | str | PathLike[str] = LATEST, permissive: bool = True
    ) -> None:
        if (
            isinstance(ckpt_spec, bool)
            or not isinstance(ckpt_spec, int | str | PathLike)
            or (isinstance(ckpt_spec, int) and ckpt_spec < -1)
        ):
            raise SettingError(f"ckpt_spec={ckpt_spec!r}: wanted -1 for the latest, the number of an epoch, or a path")
        self.path = None if path is None else Path(path)
        self.ckpt_spec, self.permissive = ckpt_spec, permissive
        self._is_done = False

    def pre_run(self, train_manager: TrainManager, standalone_eval: bool) -> None:
        if self._is_done or train_manager.has_begun:
            return
        found = self._read(train_manager)
        if found is None:
            return
        name, value = found
        if standalone_eval:
            train_manager.restore_modules(TrainingState.from_dict(value["state"]))
        else:
            take_up(train_manager, value, name)
            self._is_done = True

    def _read(self, train_manager: TrainManager) -> tuple[SavedAt | None, dict[str, Any]] | None:
        if not isinstance(self.ckpt_spec, int):
            path = os.fspath(self.ckpt_spec)
            return SavedAt.parse(os.path.basename(os.path.normpath(path))), read_checkpoint(path)
        folder = self._folder(train_manager)
        names = folder.names()
        if self.ckpt_spec != LATEST:
            name = next((name for name in names if name[:2] == (self.ckpt_spec, 0)), SavedAt(self.ckpt_spec))
            return name, checked(folder.load(name))
        problems: list[StoreDamagedError] = []
        for name in names:
            try:
                value = checked(folder.load(name))
            except StoreDamagedError as error:
                problems.append(error)
                continue
            for problem in problems:
                warnings.warn(f"{folder.root}: training goes on from {name.text}: {problem.fact}: {problem.rows.get('why')}", stacklevel=2)
            return name, value
        if problems:
            raise StoreDamagedError(
                "no checkpoint is good",
                where=folder.root,
                why="\n".join(f"{problem.fact}: {problem.rows.get('why')}" for problem in problems),
                hint="put the files back from a copy, or give another train_dir to start again",
            )
        if not self.permissive:
            raise FileNotFoundError(f"there is no checkpoint in {folder.root}")
        return None

    def _folder(self, train_manager: TrainManager) -> CheckpointFolder:
        if self.path is not None:
            return CheckpointFolder(self.path)
        for each in train_manager.extensions.values():
            if isinstance(each, CheckpointSaver):
                return each.folder_of(train_manager)
        if train_manager.train_dir is None:
            raise SettingError("there is no folder to load checkpoints from", hint="give the loop a train_dir, or CheckpointLoader a path")
        return CheckpointFolder(train_manager.train_dir / FOLDER)


def read_checkpoint(path: str) -> dict[str, Any]:
    """The checkpoint at a path, of a training of its own or of a run in a store."""
    folder, name = os.path.split(os.path.abspath(path))
    files = LocalFiles(folder)
    if not files.has(f"{name}/{MANIFEST}"):
        raise FileNotFoundError(f"there is no checkpoint {path}")
    return checked(read_values(files, name, manifest_in(files, name))[0])


def checked(value: Any) -> dict[str, Any]:
    """What a `CheckpointSaver` saved; `StateError` if it is something else."""
    if not isinstance(value, dict) or not value.keys() >= {"state", "fixtures", "attribs", "best"}:
        raise StateError("this checkpoint is not that of a training", hint="give one that a CheckpointSaver wrote")
    return value


def take_up(train_manager: TrainManager, value: dict[str, Any], name: Any) -> None:
    """Become the training that was saved, as the checkpoint `name`."""
    values = dict(value["state"])
    if value["attribs"] is not None:  # what was not kept stays as it is
        here = train_manager.capture().to_dict()
        for part in ("kinds", "objects", "buffers", "grads"):
            values[part] = {**{name: each for name, each in here[part].items() if name not in value["attribs"]}, **values[part]}
    train_manager.restore(TrainingState.from_dict(values))
    for fixture, each in value["fixtures"].items():
        if fixture in train_manager.fixtures:
            train_manager.fixtures.modify(fixture, each)
    best = None if value["best"] is None else Best(*value["best"])
    for extension in train_manager.extensions.values():
        if isinstance(extension, CheckpointSaver):
            extension.resume(train_manager.moment, name, best)
