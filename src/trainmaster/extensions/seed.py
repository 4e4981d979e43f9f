"""Seeds random number generators."""

from __future__ import annotations

from trainmaster.arguments import is_int
from trainmaster.errors import SettingError
from trainmaster.loop.rng import seed_rng
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages import Extension


class Seed(Extension):
    """Seeds the random number generators of Python, NumPy and torch when training starts.

    The generators are seeded before the model's `initialize_params` is called. When training resumes, they are restored
    instead. Weights that are initialized when the model is created are not affected. To seed their initialization too, call
    `seed_rng(seed)` before you create the model, or add a method `initialize_params` to the model.
    """

    on_every_rank = True

    def __init__(self, seed: int) -> None:
        if not is_int(seed) or not 0 <= seed < 2**63:
            raise SettingError(f"`seed` must be a whole number from 0 to 2**63 - 1, not {seed!r}", hint="Seed(7)")
        self.seed = seed

    def pre_load_checkpoint(self, train_manager: TrainManager, standalone_eval: bool) -> None:
        # This does not use `checkpoint_loaded`, which is also true after an evaluation before training. If a state from
        # before the first batch is restored, its random state replaces the seeded one after this hook.
        has_begun = any(train_manager.moment[:3])
        if not standalone_eval and not has_begun:
            seed_rng(self.seed)
