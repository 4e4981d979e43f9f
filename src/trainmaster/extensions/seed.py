"""The random numbers of a training, by one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.errors import SettingError
from trainmaster.loop.rng import seed_rng
from trainmaster.stages import Extension

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

END = 2**63


class Seed(Extension):
    """Seeds Python's, NumPy's and torch's random numbers when a training begins, before the model's `initialize_params` is called.

    A training that is taken up goes on with the random numbers it had. Weights that were drawn when the model was made are drawn already:
    call `seed_rng(seed)` before that, or give the model an `initialize_params`.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < END:
            raise SettingError(f"a seed is a whole number from 0 to 2**63 - 1, not {seed!r}", hint="Seed(7)")
        self.seed = seed

    def pre_load_checkpoint(self, train_manager: TrainManager, standalone_eval: bool) -> None:
        # Not `checkpoint_loaded`, which an evaluation before the training makes true. A state of the very beginning that was restored
        # brings its random numbers, which come after this.
        has_begun = any(train_manager.moment[:3])
        if not standalone_eval and not has_begun:
            seed_rng(self.seed)
