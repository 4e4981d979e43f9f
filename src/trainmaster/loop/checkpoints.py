"""Where the checkpoints of a training go: a small protocol, and the folder that serves a training of its own."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, Protocol

from trainmaster.store.checkpoint_folder import CheckpointFolder, SavedAt


class Moment(NamedTuple):
    """When a training is saved."""

    epoch: int
    """Epochs done."""
    batch: int
    """Batches of the next one done."""
    step: int
    """Updates done."""
    is_evaluated: bool
    """Whether the evaluation after that epoch is done."""


class Best(NamedTuple):
    """The best checkpoint so far, and by what."""

    metric: str
    value: float
    epoch: int
    name: Any
    """The checkpoint, as its place names it."""


class Checkpoints(Protocol):
    """A place for checkpoints. `save` may be called in another thread than all the rest, one call at a time."""

    keeps_evaluations: bool
    """Whether a training is saved again when all that is new is its evaluation."""

    def open(self) -> None:
        """Get ready to save; raises where somebody else saves to the same place."""

    def note(self) -> Any:
        """What belongs to a checkpoint that is taken now, and must be read in the thread that trains."""

    def save(self, moment: Moment, value: dict[str, Any], noted: Any, best: Best | None) -> Any:
        """Commit a checkpoint; its name."""

    def close(self) -> None: ...


class FolderCheckpoints:
    """The checkpoints of one training in a folder: the last `keep` and the best, or all."""

    keeps_evaluations = False

    def __init__(self, folder: CheckpointFolder, keep: int | None) -> None:
        self._folder, self._keep = folder, keep
        self._holding = contextlib.ExitStack()

    def open(self) -> None:
        self._holding.enter_context(self._folder.held())

    def note(self) -> None:
        return None

    def save(self, moment: Moment, value: dict[str, Any], noted: None, best: Best | None) -> SavedAt:
        facts = {"epoch": moment.epoch, "batch": moment.batch, "step": moment.step}
        name = self._folder.save(SavedAt(moment.epoch, moment.batch), value, facts)
        if self._keep is not None:
            for old in self._folder.names()[self._keep :]:
                if best is None or old != best.name:
                    self._folder.drop(old)
        return name

    def close(self) -> None:
        self._holding.close()
