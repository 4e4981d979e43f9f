"""The stages of a manager's work. Their names do not collide with those of a loop."""

from __future__ import annotations

from typing import Final

from trainmaster.stages import Stage, StageTree
from trainmaster.stages.tree import ENTRY

WORK: Final = StageTree(
    Stage(
        "work",
        "one config, from set-up to the last save",
        dict.fromkeys(("manager", "fixtures", "config", "key", "num_epochs", "epoch", "ckpt", "preview"), ENTRY),
        (
            Stage("work_setup", "`setup(config)`: make the model and all that is trained"),
            Stage("work_load", "`load_ckpt()`: go on from the last checkpoint, where there is one"),
            Stage("work_init", "`init_ckpt()`: start at epoch 0, where there is none"),
            Stage("work_train", "`train()`: one epoch"),
            Stage("work_eval", "`eval()`: every `eval_interval` epochs, and at the end"),
            Stage("work_save", "`save_ckpt()`: every `save_interval` epochs, and at the end"),
        ),
    ),
    landmarks=("key", "epoch"),
)
