"""The default extension that resumes training from a checkpoint."""

from __future__ import annotations

import os
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.arguments import is_int
from trainmaster.errors import SettingError, StateError, StoreDamagedError, did_you_mean
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.state import TrainingState, not_copied
from trainmaster.stages import Extension
from trainmaster.store.checkpoint import MANIFEST, manifest_in, read_newest, read_values
from trainmaster.store.checkpoint_folder import Best, CheckpointFolder, SavedAt
from trainmaster.store.files import LocalFiles

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

LATEST, BEST = -1, "best"
_MAX_LISTED = 10
_SPECS = "-1 is the latest checkpoint, 'best' the best, a number that of an epoch, and any other text is a path"


class CheckpointLoader(Extension):
    """Resumes training from the latest or best checkpoint, from the checkpoint of an epoch, or from the checkpoint at a path.

    If the latest checkpoint is requested and there is none, training starts from scratch; with `permissive=False`, this
    is an error. If the latest checkpoint is damaged, the next older intact one is used, with a warning. An
    evaluation outside of training loads only what it needs: the weights, the counters, and the states of extensions that
    affect evaluations.

    Args:
        path: the folder that contains the checkpoints; by default the folder of the `CheckpointSaver`, or `checkpoints` in
            `train_dir`.
        ckpt_spec: which checkpoint to load: -1 for the latest, "best" for the best by the metric that the `CheckpointSaver`
            monitored, the number of an epoch, or the path of a checkpoint.
    """

    def __init__(
        self, path: str | PathLike[str] | None = None, ckpt_spec: int | str | PathLike[str] = LATEST, permissive: bool = True
    ) -> None:
        if not isinstance(ckpt_spec, str | PathLike) and not (is_int(ckpt_spec) and ckpt_spec >= LATEST):
            raise SettingError(f"ckpt_spec={ckpt_spec!r}: expected -1 for the latest, 'best', the number of an epoch, or a path")
        self.path = None if path is None else Path(path)
        self.ckpt_spec, self.permissive = ckpt_spec, permissive
        self._is_done = False

    def pre_run(self, loop: TrainManager, standalone_eval: bool) -> None:
        if self._is_done or loop.has_begun:
            return
        found = self._read(loop)
        if found is None:
            return
        name, value = found
        if standalone_eval:
            loop.restore_for_evaluation(TrainingState.from_dict(value["state"]))
        else:
            is_of_saver = self.path is None and (isinstance(self.ckpt_spec, int) or self.ckpt_spec == BEST)
            restore_from(loop, value, name, self._saver(loop) if is_of_saver else None)
            self._is_done = True

    def _read(self, loop: TrainManager) -> tuple[SavedAt | None, dict[str, Any]] | None:
        if self.ckpt_spec == BEST:
            return self._read_best(self._folder(loop))
        if not isinstance(self.ckpt_spec, int):
            path = os.fspath(self.ckpt_spec)
            if not os.path.lexists(path):
                raise FileNotFoundError(f"there is no checkpoint {path}; {self._describe_known(path, loop)}")
            return SavedAt.parse(os.path.basename(os.path.normpath(path))), read_checkpoint(path)
        folder = self._folder(loop)
        names = folder.names()
        if self.ckpt_spec != LATEST:
            name = next((name for name in names if name[:2] == (self.ckpt_spec, 0)), SavedAt(self.ckpt_spec))
            return name, checked(folder.load(name))
        newest, problems = read_newest(names, lambda name: (name, checked(folder.load(name))))
        if newest is not None:
            for problem in problems:
                warnings.warn(f"{folder.root}: training resumes from {newest[0].text}: {problem}", stacklevel=2)
            return newest
        if problems:
            raise StoreDamagedError(
                "all checkpoints are damaged",
                where=folder.root,
                why="\n".join(problems),
                hint="restore the files from a backup, or use another train_dir to start from scratch",
            )
        if not self.permissive:
            raise FileNotFoundError(f"there is no checkpoint in {folder.root}")
        return None

    def _read_best(self, folder: CheckpointFolder) -> tuple[SavedAt, dict[str, Any]]:
        best = folder.best()
        if best is not None:
            return best, checked(folder.load(best))
        raise FileNotFoundError(
            f"there is no best checkpoint in {folder.root}: no metric was monitored, or the best checkpoint was deleted;"
            f" it has {_listed(folder)}; {_SPECS}"
        )

    def _describe_known(self, spec: str, loop: TrainManager) -> str:
        """Describe the valid values of `ckpt_spec`, for the error message about a path that does not exist."""
        try:
            folder = self._folder(loop)
        except SettingError:  # without a folder, only paths are valid
            return _SPECS
        near = did_you_mean(spec, [BEST, *(name.text for name in folder.names())])
        return f"{near} {_SPECS}; {folder.root} has {_listed(folder)}".lstrip()

    def _folder(self, loop: TrainManager) -> CheckpointFolder:
        if self.path is not None:
            return CheckpointFolder(self.path)
        return (self._saver(loop) or CheckpointSaver()).folder_of(loop)

    def _saver(self, loop: TrainManager) -> CheckpointSaver | None:
        """Return the `CheckpointSaver` whose checkpoints are loaded by default."""
        return next((each for each in loop.extensions.values() if isinstance(each, CheckpointSaver)), None)


def _listed(folder: CheckpointFolder) -> str:
    names = [name.text for name in folder.names()]
    return ", ".join(names[:_MAX_LISTED] + ["..."] * (len(names) > _MAX_LISTED)) or "no checkpoints"


def read_checkpoint(path: str) -> dict[str, Any]:
    """Return the contents of the checkpoint at `path`. The checkpoint may be in a `train_dir` or in a store."""
    folder, name = os.path.split(os.path.abspath(path))
    files = LocalFiles(folder)
    if not files.has(f"{name}/{MANIFEST}"):
        raise FileNotFoundError(f"there is no checkpoint {path}")
    return checked(read_values(files, name, manifest_in(files, name))[0])


def checked(value: Any) -> dict[str, Any]:
    """Return `value` if it was saved by a `CheckpointSaver`. Otherwise, raise `StateError`."""
    if not isinstance(value, dict) or not value.keys() >= {"state", "fixtures", "attribs", "best"}:
        raise StateError("this checkpoint does not contain a training state", hint="use one that a CheckpointSaver wrote")
    return value


def restore_from(loop: TrainManager, value: dict[str, Any], name: Any = None, saver: CheckpointSaver | None = None) -> None:
    """Restore a loop from `value`, the contents of a checkpoint.

    If `saver` is passed, the checkpoint comes from that saver's destination, and `name` is the checkpoint's name there.

    The loop may use the tensors in `value` without copying them, so do not use `value` afterwards.
    """
    values = dict(value["state"])
    if value["attribs"] is not None:  # attributes that were not saved keep their current state
        here = loop.capture_own(not_copied).to_dict()
        for part in ("kinds", "objects", "buffers", "grads"):
            values[part] = {**{name: each for name, each in here[part].items() if name not in value["attribs"]}, **values[part]}
    loop.restore(TrainingState.from_dict(values), not_copied)
    for fixture, each in value["fixtures"].items():
        if fixture in loop.fixtures:
            loop.fixtures.modify(fixture, each)
    best = None if value["best"] is None else Best(*value["best"])
    for extension in loop.extensions.values():
        if isinstance(extension, CheckpointSaver):
            extension.resume(loop.moment, name if extension is saver else None, best)
