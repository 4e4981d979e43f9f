"""The default extension that saves a training: its exact state, in the background, while training goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from trainmaster.errors import CodecError, SettingError
from trainmaster.loop.buffers import Buffers
from trainmaster.loop.checkpoints import Best, Checkpoints, FolderCheckpoints, Moment
from trainmaster.loop.metric import find_metric
from trainmaster.stages import Extension, Fixtures, always
from trainmaster.store.checkpoint_folder import CheckpointFolder
from trainmaster.store.codec import encode

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

FOLDER = "checkpoints"
"""Where they lie below `train_dir`."""


class CheckpointSaver(Extension):
    """Saves after every `every_epochs` epochs, after every `every_steps` updates if asked, when training is stopped, and at its end (E36).

    What is saved is all that decides how the training goes on: the state of every attribute of the loop that has one, of the extensions,
    the random numbers, the place in the data. It is copied at once and written while training goes on; the next save waits for the one
    before.

    Args:
        path: the folder; by default `checkpoints` below the loop's `train_dir`. Under a manager they go to the store.
        saved_fixtures: fixtures to keep, too, by name.
        saved_attribs: the loop's attributes to keep the state of; None for all that have one.
        keep: how many to keep, beyond the best; None for all.
        best_by: the evaluation set whose loss tells the best, or the name of a recorded number; by default the first set. The greatest is
            best of accuracies, returns and other well-known scores, by their names.
        in_background: False has training wait until a checkpoint is on the disk.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        saved_fixtures: Iterable[str] = ("epoch_num",),
        saved_attribs: Iterable[str] | None = None,
        *,
        every_epochs: int | None = 1,
        every_steps: int | None = None,
        keep: int | None = None,
        best_by: str | None = None,
        in_background: bool = True,
    ) -> None:
        for name, value in (("every_epochs", every_epochs), ("every_steps", every_steps), ("keep", keep)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SettingError(f"{name}={value!r}: wanted a whole number, 1 or more, or None")
        for name, names in (("saved_fixtures", saved_fixtures), ("saved_attribs", saved_attribs)):
            if isinstance(names, str):
                raise SettingError(f"{name}={names!r}: wanted a list of names", hint=f"{name}=[{names!r}]")
        self.path = None if path is None else Path(path)
        self.saved_fixtures = tuple(saved_fixtures)
        self.saved_attribs = None if saved_attribs is None else tuple(saved_attribs)
        self.every_epochs, self.every_steps, self.keep = every_epochs, every_steps, keep
        self.best_by, self.in_background = best_by, in_background
        self.best: Best | None = None
        self._hosted: Checkpoints | None = None
        self._place: Checkpoints | None = None
        self._buffers = Buffers()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[Any] | None = None
        self._last: Moment | None = None
        self._last_name: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether nobody has asked for anything in particular."""
        return self._settings() == CheckpointSaver()._settings()

    def _settings(self) -> tuple[object, ...]:
        saved = self.saved_fixtures, self.saved_attribs
        return self.path, saved, self.every_epochs, self.every_steps, self.keep, self.best_by, self.in_background

    def save_to(self, place: Checkpoints) -> None:
        """Have a host say where checkpoints go."""
        self._hosted = place

    def resume(self, moment: Moment, name: Any, best: Best | None) -> None:
        """Go on from a checkpoint, with the best one up to it."""
        self._last, self._last_name, self.best = moment, name, best

    def folder_of(self, train_manager: TrainManager) -> CheckpointFolder:
        """The folder for checkpoints, where no host has another place."""
        if self.path is None and train_manager.train_dir is None:
            raise SettingError("there is no folder for checkpoints", hint="give the loop a train_dir, or CheckpointSaver a path")
        return CheckpointFolder(self.path if self.path is not None else Path(str(train_manager.train_dir)) / FOLDER)

    # ---- hooks

    def pre_train(self, train_manager: TrainManager, fixtures: Fixtures) -> None:
        self._check_names(train_manager)
        place = self._hosted if self._hosted is not None else FolderCheckpoints(self.folder_of(train_manager), self.keep)
        place.open()
        self._place = place
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trainmaster-save") if self.in_background else None
        if not any(map(is_lazy, train_manager.model.parameters())):  # lazy ones have no value before the first batch
            self._check_storable(self._value(train_manager, fixtures))

    def post_train_step_batch(self, train_manager: TrainManager, fixtures: Fixtures, step_num: int, is_update: bool) -> None:
        if self._pending is not None and self._pending.done():
            self._wait()  # an error is to be seen now, not an epoch later
        if self.every_steps is not None and is_update and step_num % self.every_steps == 0:
            self._save(train_manager, fixtures)

    def post_train_step_epoch(self, train_manager: TrainManager, fixtures: Fixtures, epoch_num: int, stopped: str | None) -> None:
        if stopped is not None or (self.every_epochs is not None and epoch_num % self.every_epochs == 0):
            self._save(train_manager, fixtures)

    def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float], epoch_num: int) -> None:
        """See whether the checkpoint of this epoch is the best."""
        is_saved = self._last is not None and self._last[:2] == (epoch_num, 0)
        if self._place is None or not is_saved or not train_manager.moment.is_evaluated:
            return
        found = find_metric(self.best_by, eval_losses, train_manager.writer)
        if found is None or not math.isfinite(found.value):
            return
        metric, value = found
        sign = -1 if found.is_greater_better else 1
        if self.best is None or self.best.metric != metric or sign * value < sign * self.best.value:
            self._wait()  # for its name
            self.best = Best(metric, value, epoch_num, self._last_name)

    @always
    def post_train(self, train_manager: TrainManager, fixtures: Fixtures, exc_type: type[BaseException] | None = None) -> None:
        if self._place is None:
            return
        try:
            if exc_type is None:
                self._save(train_manager, fixtures)
            self._wait()
        finally:
            place, self._place = self._place, None
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()
            self._pending = None
            place.close()

    # ---- saving

    def _save(self, train_manager: TrainManager, fixtures: Fixtures) -> None:
        assert self._place is not None
        moment = train_manager.moment
        compared = slice(None) if self._place.keeps_evaluations else slice(3)
        if self._last is not None and self._last[compared] == moment[compared]:
            return
        self._wait()
        value = self._value(train_manager, fixtures)
        noted = self._place.note()
        self._last = moment
        if self._pool is None:
            self._last_name = self._place.save(moment, value, noted, self.best)
        else:
            self._pending = self._pool.submit(self._place.save, moment, value, noted, self.best)

    def _wait(self) -> None:
        """Wait for the save that is going on; its error, if it had one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._last_name = pending.result()

    def _value(self, train_manager: TrainManager, fixtures: Fixtures) -> dict[str, Any]:
        """All that is saved, copied into memory that the copy before used: nobody may need that any more."""
        self._buffers.begin()
        copied = self._buffers.copied
        state = train_manager.capture(copied).to_dict()
        if self.saved_attribs is not None:
            for part in ("kinds", "objects", "buffers", "grads"):
                state[part] = {name: each for name, each in state[part].items() if name in self.saved_attribs}
        kept = {name: copied(fixtures[name]) for name in self.saved_fixtures if name in fixtures}
        self._buffers.end()
        best = None if self.best is None else (self.best.metric, self.best.value, self.best.epoch, tuple(self.best.name))
        return {"state": state, "fixtures": kept, "attribs": self.saved_attribs, "best": best}

    def _check_names(self, train_manager: TrainManager) -> None:
        known = train_manager.stateful_names()
        for name in self.saved_attribs or ():
            if name not in known:
                raise SettingError(f"saved_attribs names `{name}`, which has no state", known=", ".join(known), hint="leave it out")

    def _check_storable(self, value: dict[str, Any]) -> None:
        """Tell now what cannot be stored, and not after the first epoch."""
        try:
            encode(value)
        except CodecError as error:
            raise CodecError(
                "this training cannot be saved", wrong=error.rows.get("wrong", error.fact), hint="keep plain values and tensors in it"
            ) from None
