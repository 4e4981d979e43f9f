"""The default extension that makes a manager ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.stages import Extension

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


class Setup(Extension):
    """Moves the model to the device, builds optimizer and schedule, initialises parameters where nothing was loaded (E32)."""

    def pre_run(self, train_manager: TrainManager, standalone_eval: bool) -> None:
        train_manager.build(with_optimizer=not standalone_eval)

    def post_load_checkpoint(self, train_manager: TrainManager, checkpoint_loaded: bool) -> None:
        if not checkpoint_loaded:
            train_manager.initialize_once()
