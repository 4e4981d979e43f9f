"""A loop under a manager: what is attached to it, so that it records, shows and saves itself as a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trainmaster.errors import SettingError
from trainmaster.loop.checkpoint_loader import checked
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.loop.state import Stateful, TrainingState, own_copy, restore_modules
from trainmaster.loop.train_manager import TrainManager
from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints
from trainmaster.manager.recording import MeanTimes, Recording
from trainmaster.manager.run_writer import RunWriter
from trainmaster.stages.checker import is_of
from trainmaster.stages.hooks import Hook, LazyFixture, find_hooks, find_lazy_fixtures
from trainmaster.store import Attempt

SAVER, LOADER = "checkpoint_saver", "checkpoint_loader"
_MAX_PREVIEW = 200
"""How many numbers a preview has at most."""


class Pristine:
    """The states that extensions had before their first run, so that no run begins with what another one left."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[object, Any]] = {}

    def renew(self, extension: object) -> None:
        if isinstance(extension, Stateful):
            kept = self._states.setdefault(id(extension), (extension, own_copy(extension.state_dict())))
            extension.load_state_dict(own_copy(kept[1]))


class HostedLoop:
    """The loop of one run, with what a manager attaches to it."""

    def __init__(self, loop: TrainManager, save_interval: int, told: Callable[[float], None]) -> None:
        self.loop = loop
        self.writer = RunWriter()
        self.times = MeanTimes()
        self.is_over = False
        """Whether there was nothing left to train when it was last saved."""
        self.stopped: str | None = None
        """Why a hook has ended it before its last epoch, if one has."""
        self._told = told
        self._is_resumed = False
        self._interrupted: Callable[[], str | None] = lambda: None
        loop.extensions.pop(LOADER, None)
        saver = loop.extensions.pop(SAVER, None)
        if saver is not None and not isinstance(saver, CheckpointSaver):
            raise SettingError(f"`{SAVER}` is a {type(saver).__name__}", hint="under a manager, CheckpointSaver saves to the store")
        if saver is not None and saver.path is not None:
            raise SettingError(
                f"CheckpointSaver has the path {saver.path}", hint="under a manager checkpoints go to the store: leave it out"
            )
        self._saver = CheckpointSaver(every_epochs=save_interval) if saver is None or saver.is_plain else saver

    def equip(self, extensions: Mapping[str, object], pristine: Pristine, shows: Mapping[str, object]) -> None:
        """Attach the manager's extensions that have hooks for a loop; then what shows it, unless it has its own, records and saves it."""
        for name, extension in extensions.items():
            if has_loop_hooks(name, extension):
                pristine.renew(extension)
                self.loop.add_extension(name, extension)
        for name, extension in shows.items():
            if not any(isinstance(each, type(extension)) for each in self.loop.extensions.values()):
                self.loop.add_extension(name, extension, as_default=True)
        self.loop.add_extension("recording", Recording(self.writer, self.times, self._told, lambda: self._interrupted()))
        self.loop.add_extension(SAVER, self._saver)
        self.loop.settle(writer=self.writer)

    def work_for(
        self,
        attempt: Attempt,
        keep: int,
        interrupted: Callable[[], str | None],
        patient: Callable[[], AbstractContextManager[None]],
        is_drawn: bool,
    ) -> None:
        """Record to an attempt's log, save its checkpoints, and draw its curves if anybody can see them."""
        self.writer.hide(attempt.mask)
        self.writer.append_to(attempt.log.append, attempt.run.events)
        self.writer.mute(self._is_resumed)

        def facts() -> tuple[dict[str, Any], dict[str, Any]]:
            return self.status(interrupted() is not None), self.preview()

        self._interrupted = interrupted
        self._saver.save_to(AttemptCheckpoints(attempt, self._saver.keep or keep, facts, patient, is_drawn))

    def status(self, is_interrupted: bool) -> dict[str, Any]:
        loop = self.loop
        stopped = loop.fixtures.get("stopped")
        is_asked = stopped is not None and not is_interrupted and not loop.is_out_of_time()
        self.is_over = (loop.is_over() and loop.moment.is_evaluated and not loop.moment.batch) or is_asked
        self.stopped = stopped if is_asked else None
        return {
            **self.times.means,
            "toc": time.time(),
            "target": loop.epochs,
            "is_evaluated": loop.moment.is_evaluated,
            "is_over": self.is_over,
            "stopped": self.stopped,
        }

    def preview(self) -> dict[str, Any]:
        """The last of each number; where there are too many, losses stay."""
        found = list(self.writer.latest.items())
        if len(found) > _MAX_PREVIEW:
            found.sort(key=lambda each: not each[0].startswith("losses/"))
        return dict(found[:_MAX_PREVIEW])

    def resume(self, status: Mapping[str, Any], preview: Mapping[str, Any]) -> None:
        """Go on with the numbers of a checkpoint."""
        self._is_resumed = True
        self.stopped = status.get("stopped")
        self.is_over = self.stopped is not None  # until it is saved again
        self.writer.latest = dict(preview)
        self.times.means = {name: status.get(name) for name in self.times.means}


def has_loop_hooks(name: str, extension: object) -> bool:
    parts: list[Hook | LazyFixture] = [*find_hooks(name, extension), *find_lazy_fixtures(name, extension)]
    return any(is_of(part, TRAIN_MANAGER) for part in parts)


def load_weights(loop: TrainManager, value: Any) -> None:
    """Start a loop with the weights of another training, and nothing else of it."""
    restore_modules(TrainingState.from_dict(checked(value)["state"]), loop)
    loop.begin_with_weights()
