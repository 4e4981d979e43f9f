"""The default extension that saves the exact training state in checkpoints, in the background while training continues."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from trainmaster.arguments import is_int
from trainmaster.errors import CodecError, LeaseLostError, SettingError
from trainmaster.loop.buffers import Buffers
from trainmaster.loop.metric import Metric, check_direction, check_monitor, monitored
from trainmaster.loop.sharding import refuse_shards
from trainmaster.loop.state import stateful_attributes
from trainmaster.loop.writer import flush_of
from trainmaster.stages import Extension, Fixtures, always
from trainmaster.store.checkpoint_folder import Best, CheckpointDestination, CheckpointFolder, Moment, is_better
from trainmaster.store.codec import encode

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

FOLDER = "checkpoints"
"""The name of the checkpoint folder in `train_dir`."""


class NotSaved:
    """The checkpoint destination on ranks other than 0. These ranks help to capture the state, but save nothing."""

    path = None

    def open(self) -> None: ...

    def facts(self) -> None: ...

    def next_name(self, moment: Moment) -> Any: ...

    def save(self, moment: Moment, value: dict[str, Any], facts: Any, best: Best | None, replaced: Any = None) -> None: ...

    def close(self) -> None: ...


class CheckpointSaver(Extension):
    """Saves a checkpoint every `every_epochs` epochs, every `every_steps` updates, and when training stops or ends.

    At the end of an epoch, a single checkpoint is saved, after the evaluation. If the loop has not trained since the
    last checkpoint, the new checkpoint replaces the last one. The saver runs after all other extensions, no matter where it is in the
    list, so that the checkpoint includes their changes.

    A checkpoint contains everything that training depends on: the states of the loop's attributes and of
    the extensions, the random state, and the position in the data. The saver copies all of this immediately, and
    writes the copy while training continues. The next save waits until the previous one has finished.

    Args:
        path: the folder; by default `checkpoints` in the loop's `train_dir`. Under a manager, checkpoints go to the
            store. Once training has started, the attribute `path` is the folder in use.
        saved_fixtures: the names of fixtures that are also saved.
        saved_attribs: the loop's attributes whose states are saved; None for all attributes that have a state.
        keep: how many checkpoints to keep in addition to the best one; None to keep all of them.
        monitor: the name of the metric that decides which checkpoint is the best, or the last part of this name; by default
            the loss on the first evaluation set.
        mode: "min" if lower is better, or "max" if higher is better. It may be omitted for losses and errors, and for
            accuracies, returns and other well-known scores.
        in_background: if False, training waits until each checkpoint is written to disk.
    """

    on_every_rank = True  # all ranks capture the state together; only rank 0 writes
    creates = {}

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        saved_fixtures: Iterable[str] = ("epoch_num",),
        saved_attribs: Iterable[str] | None = None,
        *,
        every_epochs: int | None = 1,
        every_steps: int | None = None,
        keep: int | None = None,
        monitor: str | None = None,
        mode: str | None = None,
        in_background: bool = True,
    ) -> None:
        for name, value in (("every_epochs", every_epochs), ("every_steps", every_steps), ("keep", keep)):
            if value is not None and (not is_int(value) or value < 1):
                raise SettingError(f"{name}={value!r}: expected a whole number, 1 or more, or None")
        check_monitor(monitor, 'CheckpointSaver(monitor="valid/loss")')
        for name, names in (("saved_fixtures", saved_fixtures), ("saved_attribs", saved_attribs)):
            if isinstance(names, str):
                raise SettingError(f"{name}={names!r}: expected a list of names", hint=f"{name}=[{names!r}]")
        self.path = self._given_path = None if path is None else Path(path)
        self.saved_fixtures = tuple(saved_fixtures)
        self.saved_attribs = None if saved_attribs is None else tuple(saved_attribs)
        self.every_epochs, self.every_steps, self.keep = every_epochs, every_steps, keep
        if mode not in (None, "min", "max"):
            raise SettingError(f"mode={mode!r}: expected 'min', 'max' or None")
        self.monitor, self.mode, self.in_background = monitor, mode, in_background
        self.best: Best | None = None
        self._host_destination: CheckpointDestination | None = None
        self._destination: CheckpointDestination | None = None
        self._buffers = Buffers()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[Any] | None = None
        self._pid = os.getpid()
        self._last: Moment | None = None
        self._last_name: Any = None
        self._is_stop_saved = False
        """Whether the last checkpoint was saved after a stop was requested."""
        self._has_trained = False
        """Whether the loop has trained on a batch since the last checkpoint."""

    @property
    def has_default_settings(self) -> bool:
        """Whether all settings have their default values."""
        return self._settings() == CheckpointSaver()._settings()

    @property
    def has_own_path(self) -> bool:
        """Whether the saver was created with a path."""
        return self._given_path is not None

    def _settings(self) -> tuple[object, ...]:
        saved = self.saved_fixtures, self.saved_attribs
        return self._given_path, saved, self.every_epochs, self.every_steps, self.keep, self.monitor, self.mode, self.in_background

    def use_defaults(self, keep: int, monitor: str | None, mode: str | None) -> None:
        """Use these values for settings that the constructor did not set. The loop of a `ModelWrapper` passes the values of its config."""
        self.keep = keep if self.keep is None else self.keep
        if self.monitor is None and monitor is not None:
            self.monitor, self.mode = monitor, self.mode or mode

    def save_to(self, destination: CheckpointDestination) -> None:
        """Save to `destination` from now on. A manager calls this."""
        self._host_destination = destination

    def resume(self, moment: Moment, name: Any, best: Best | None) -> None:
        """Continue from the restored checkpoint `name` at the position `moment`. `best` is the best checkpoint so far."""
        self._last, self._last_name, self.best = moment, name, best
        self._is_stop_saved, self._has_trained = True, False  # a stop before the next batch need not save this state again

    def folder_of(self, loop: TrainManager) -> CheckpointFolder:
        """Return the folder for checkpoints. It is not used if a manager has set a different destination."""
        if self._given_path is not None:
            return CheckpointFolder(self._given_path, self.keep)
        if loop.train_dir is None:
            raise SettingError("there is no folder for checkpoints", hint="pass the loop a train_dir, or the extension a path")
        return CheckpointFolder(loop.train_dir / FOLDER, self.keep)

    # ---- hooks

    def pre_train(self, loop: TrainManager, fixtures: Fixtures) -> None:
        self._check_names(loop)
        check_direction(self.monitor, self.mode, loop, "CheckpointSaver")
        if loop.epoch_num == loop.step_num == 0:  # earlier checkpoints belong to a different training run
            self._last = self._last_name = self.best = None
        destination: CheckpointDestination = NotSaved()
        if loop.ranks.is_first:
            destination = self._host_destination or self.folder_of(loop)
        destination.open()
        self._destination, self._pid, self.path = destination, os.getpid(), destination.path
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trainmaster-save") if self.in_background else None
        if not any(map(is_lazy, loop.model.parameters())):  # lazy parameters have no value before the first batch
            self._check_storable(self._value(loop, fixtures))

    def post_train_step_batch(self, loop: TrainManager, fixtures: Fixtures, step_num: int, is_update: bool) -> None:
        self._has_trained = True
        if self._pending is not None:
            self._check_process()  # checked first, because a forked process could wait forever
            if self._pending.done():
                self._wait()  # so that an error is reported now, not an epoch later
        if self.every_steps is not None and is_update and step_num % self.every_steps == 0:
            self._save(loop, fixtures)

    def post_train_step_epoch(self, loop: TrainManager, fixtures: Fixtures, stopped: str | None) -> None:
        if stopped is not None:  # this epoch will not be evaluated
            self._save(loop, fixtures)

    def post_eval(self, loop: TrainManager, fixtures: Fixtures, eval_losses: dict[str, float], epoch_num: int, stopped: str | None) -> None:
        """Save a checkpoint after an evaluation if one is due. It becomes the best checkpoint if its metric is the best so far."""
        if self._destination is None or not loop.is_own_evaluation or not loop.moment.is_evaluated:
            return
        metric = None
        if loop.ranks.is_first:
            metric = monitored(self.monitor, loop, eval_losses, "CheckpointSaver")  # reports an unknown name at the first evaluation
        is_turn = self.every_epochs is not None and loop.epochs_done > 0 and epoch_num % self.every_epochs == 0
        if is_turn or stopped is not None or loop.is_over():
            self._save(loop, fixtures, metric)

    @always
    def post_train(self, loop: TrainManager, fixtures: Fixtures, exc_type: type[BaseException] | None = None) -> None:
        if self._destination is None:
            return
        try:
            if exc_type is None:
                self._save(loop, fixtures)
            self._wait()
        finally:
            destination, self._destination = self._destination, None
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()
            self._pending = None
            destination.close()

    # ---- saving

    def _save(self, loop: TrainManager, fixtures: Fixtures, metric: Metric | None = None) -> None:
        """Save the current state, unless it is already saved. `metric` decides whether this checkpoint is the best."""
        assert self._destination is not None
        moment, is_stopped = loop.moment, fixtures["stopped"] is not None
        if loop.ranks.from_first(moment == self._last and (self._is_stop_saved or not is_stopped)):
            return
        self._wait()
        name = self._destination.next_name(moment)
        replaced = None if self._has_trained else self._last_name
        mode = self.mode or ("max" if metric is not None and metric.is_greater_better else "min")
        if metric is not None and is_better(metric.value, metric.name, mode, self.best):
            self.best = Best(metric.name, metric.value, moment.epoch, name, mode)
        elif self.best is not None and self.best.name == replaced:
            self.best = self.best._replace(name=name)
        value = self._value(loop, fixtures)  # this makes extensions write their buffered metrics
        flush_of(loop.writer)()
        facts = self._destination.facts()
        self._last, self._last_name, self._is_stop_saved, self._has_trained = moment, name, is_stopped, False
        if self._pool is None:
            self._destination.save(moment, value, facts, self.best, replaced)
        else:
            self._pending = self._pool.submit(self._destination.save, moment, value, facts, self.best, replaced)

    def _check_process(self) -> None:
        """Raise an error in a forked process, because the saving thread only exists in the parent."""
        if os.getpid() != self._pid:
            raise LeaseLostError(
                f"process {os.getpid()} was forked from a training process, and cannot save checkpoints",
                hint="end a forked process with `os._exit()`, or start it with `multiprocessing`",
            )

    def _wait(self) -> None:
        """Wait for the current save, and raise its error if it failed."""
        self._check_process()
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _value(self, loop: TrainManager, fixtures: Fixtures) -> dict[str, Any]:
        """Return a copy of everything that a checkpoint contains. It overwrites the previous copy, which is already saved."""
        self._buffers.begin()
        copied = self._buffers.copied
        state = loop.capture(copied).to_dict()
        if self.saved_attribs is not None:
            for part in ("kinds", "objects", "buffers", "grads"):
                state[part] = {name: each for name, each in state[part].items() if name in self.saved_attribs}
        values = {name: copied(fixtures[name]) for name in self.saved_fixtures if name in fixtures}
        self._buffers.end()
        best = None if self.best is None else tuple(self.best._replace(name=tuple(self.best.name)))
        return {"state": state, "fixtures": values, "attribs": self.saved_attribs, "best": best}

    def _check_names(self, loop: TrainManager) -> None:
        if self.saved_attribs is not None:
            refuse_shards(loop.model, "CheckpointSaver(saved_attribs=...)")
        known = list(stateful_attributes(loop))
        for name in self.saved_attribs or ():
            if name not in known:
                raise SettingError(f"saved_attribs names `{name}`, which has no state", known=", ".join(known), hint="leave it out")

    def _check_storable(self, value: dict[str, Any]) -> None:
        """Raise an error if a value cannot be stored. This runs at the start of training, long before the first save."""
        try:
            encode(value)
        except CodecError as error:
            raise CodecError(
                "this training run cannot be saved",
                wrong=error.rows.get("wrong", error.fact),
                hint="use only plain values and tensors in its state",
            ) from None
