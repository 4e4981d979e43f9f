"""Counts the finished epochs and updates of a `TrainManager` or a `TrainTestLoop`."""

from __future__ import annotations

from typing import Any

from trainmaster.loop.train_test_loop import TrainTestLoop
from trainmaster.stages import Fixtures


def epochs_done(loop: Any) -> Any:
    """Return the number of finished epochs. Call this at the end of an epoch, or in the evaluation after it.

    The number has a fractional part if a `TrainManager` evaluates in the middle of an epoch. A `TrainTestLoop` counts an epoch
    only after its evaluation, so the current epoch is added here.
    """
    if isinstance(loop, TrainTestLoop):
        return loop.epoch_num + (not loop.is_testing)
    return loop.eval_x


def is_epoch_complete(loop: Any) -> bool:
    """Return whether the epoch is complete and was not ended early by `stop`. Call this in `post_train_step_epoch`."""
    moment = getattr(loop, "moment", None)  # a TrainTestLoop that is stopped does not call this hook
    return moment is None or not moment.batch


def is_in_training(loop: Any, fixtures: Fixtures) -> bool:
    """Return whether an evaluation is part of training and was not stopped. Call this in `post_eval_step_epoch`."""
    return not (fixtures.get("standalone_eval") or getattr(loop, "is_testing", False)) and fixtures.get("stopped") is None


def updates_before(fixtures: Fixtures) -> int:
    """Return the number of updates before the current batch. Call this before the optimizer step."""
    return int(fixtures["step_num"] if "step_num" in fixtures else fixtures["optim_step_num"])


def updates_done(fixtures: Fixtures) -> int:
    """Return the number of updates, including the current one. Call this after the optimizer step."""
    return updates_before(fixtures) + ("step_num" not in fixtures)
