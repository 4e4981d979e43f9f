"""The stage trees of `TrainManager`, of `TrainTestLoop`, and of a manager while it processes one config.

This file declares every stage name and every fixture exactly once.
"""

from __future__ import annotations

from typing import Final

from trainmaster.stages import BODY, ENTRY, Stage, StageTree

PROGRESS: Final = ("epoch_index", "batch_num", "step_num", "datasource_name")

BATCH: Final = {"batch": ENTRY, "batch_num": ENTRY}

# The stages of one batch. Most of the routines below share them.
FORWARD: Final = Stage("forward", "the model's prediction for the batch")
LOSS: Final = Stage("loss", "the loss of that prediction")
_ACCUMULATED: Final = "gradients; zeroed first if an update came before"
BACKWARD: Final = Stage("backward", _ACCUMULATED, {"objective": ENTRY})
OPTIMIZER_STEP: Final = Stage("optimizer_step", "the update; only if `is_update`")

# The stages of a `TrainManager`, from the inside out: batches, epochs, routines, and the object itself.
_PREDICTION_AND_LOSS: Final = {"prediction": "forward", "loss": "loss"}
_TRAIN_BATCH: Final = Stage(
    "train_step_batch", "one batch", {**BATCH, "is_update": ENTRY, **_PREDICTION_AND_LOSS}, (FORWARD, LOSS, BACKWARD, OPTIMIZER_STEP)
)
_EVAL_BATCH: Final = Stage("eval_step_batch", "one batch, without gradients", {**BATCH, **_PREDICTION_AND_LOSS}, (FORWARD, LOSS))
_PREDICT_BATCH: Final = Stage("predict_step_batch", "one batch", {**BATCH, "prediction": "forward"}, (FORWARD,))

_TRAIN_EPOCH: Final = Stage(
    "train_step_epoch",
    "one pass over the training data; `epoch_num` rises at its end",
    {"epoch_index": ENTRY, "mode_name": ENTRY},
    (_TRAIN_BATCH,),
)
_EVAL_SET: Final = Stage("eval_step_epoch", "one evaluation set", {"datasource_name": ENTRY, "mode_name": ENTRY}, (_EVAL_BATCH,))

EVAL: Final = Stage("eval", "all evaluation sets", {"eval_losses": ENTRY, "eval_metrics": ENTRY}, (_EVAL_SET,))
_TRAIN: Final = Stage("train", "all epochs", {}, (EVAL, _TRAIN_EPOCH))
_PREDICT: Final = Stage("predict", "predictions for new data", {"mode_name": ENTRY}, (_PREDICT_BATCH,))
_LOAD: Final = Stage("load_checkpoint", "restore the state of earlier training", {"checkpoint_loaded": ENTRY})
_RUN: Final = Stage(
    "run",
    "the outermost call to train(), eval() or predict()",
    {"standalone_eval": ENTRY, "stopped": ENTRY},
    (_LOAD, _TRAIN, EVAL, _PREDICT),
)
_MANAGER_FIXTURES: Final = (
    "train_manager", "loop", "fixtures", "model", "device", "writer", "optimizer", "lr_schedule", "epoch_num", "step_num",
)  # fmt: skip
TRAIN_MANAGER: Final = StageTree(
    Stage("train_manager", "from construction on", dict.fromkeys(_MANAGER_FIXTURES, ENTRY), (_RUN,), is_permanent=True), PROGRESS
)

WORK: Final = StageTree(
    Stage(
        "work",
        "one config, from setup to the last save",
        dict.fromkeys(("manager", "fixtures", "config", "key", "num_epochs", "epoch", "ckpt", "preview"), ENTRY),
        (
            Stage("work_setup", "`setup(config)`: make the model and everything that is trained"),
            Stage("work_load", "`load_ckpt()`: resume from the last checkpoint, if there is one"),
            Stage("work_init", "`init_ckpt()`: start at epoch 0, if there is none"),
            Stage("work_train", "`train()`: one epoch; with `make_loop`, everything that the loop trains, evaluates and saves"),
            Stage("work_eval", "`eval()`: every `eval_interval` epochs, and at the end"),
            Stage("work_save", "`save_ckpt()`: every `save_interval` epochs, and at the end"),
        ),
    ),
    progress=("key", "epoch"),
)
"""The stage tree of a manager's work on one config.

The stage names differ from those of a loop, so one extension may have hooks for both trees.
"""

# The attributes of a TrainTestLoop are also fixtures. They are read from the loop when a hook asks for them.
_LOOP_VARIABLES: Final = (
    "loop", "fixtures", "model", "components", "train_data", "valid_data", "n_epochs", "n_batches", "n_optim_steps",
    "is_training", "is_validating", "is_testing", "epoch_desc", "epoch_num", "optim_step_num",
)  # fmt: skip
_LOOP_BATCH: Final = Stage(
    "train_step_batch", "one batch", {**BATCH, "loss": "loss"}, (FORWARD, LOSS, Stage("backward", _ACCUMULATED), OPTIMIZER_STEP)
)
_LOOP_EPOCH: Final = Stage("train_step_epoch", "one pass over the training data", {"datasource_name": ENTRY}, (_LOOP_BATCH,))
_LOOP_EVAL_BATCH: Final = Stage("eval_step_batch", "one batch, without gradients", {**BATCH, "loss": BODY}, (FORWARD, LOSS))
_LOOP_EVAL: Final = Stage("eval_step_epoch", "one pass over the validation or test data", {"datasource_name": ENTRY}, (_LOOP_EVAL_BATCH,))
_LOOP_TRAIN: Final = Stage("train", "all epochs", {}, (_LOOP_EPOCH, _LOOP_EVAL))

TRAIN_TEST_LOOP: Final = StageTree(
    Stage("loop", "from construction on", dict.fromkeys(_LOOP_VARIABLES, ENTRY), (_LOOP_TRAIN, _LOOP_EVAL), is_permanent=True),
    ("epoch_desc", "epoch_num", "batch_num", "optim_step_num"),
)
