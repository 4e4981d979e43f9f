"""The default extension that prepares a loop to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.loop.unregistered import modules_of, warn_of_unregistered
from trainmaster.stages import Extension

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


class Setup(Extension):
    """Moves the model to the device, and builds the optimizer and the schedule.

    If no checkpoint was loaded, it also initializes the parameters. Before training, it warns about layers that are not
    registered with the model.
    """

    on_every_rank = True

    def pre_run(self, loop: TrainManager, standalone_eval: bool) -> None:
        loop.build(with_optimizer=not standalone_eval)
        if not standalone_eval:
            warn_of_unregistered(loop.model, modules_of(loop))

    def post_load_checkpoint(self, loop: TrainManager, checkpoint_loaded: bool) -> None:
        if not checkpoint_loaded:
            loop.initialize_once()
