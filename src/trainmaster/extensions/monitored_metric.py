"""Looks up the metric that an extension monitors after each evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.loop.metric import Metric, expected_name, loss_name, monitored
from trainmaster.loop.train_manager import TrainManager


def next_value(
    monitor: str | None, loop: TrainManager, eval_losses: Mapping[str, float], last_epoch: float | None, extension: str
) -> Metric | None:
    """Return the name and value of the monitored metric, or None if the evaluation is not part of training or was already handled.

    Call it in `post_eval`. `last_epoch` is the epoch after which the extension last handled an evaluation.
    """
    if not loop.is_own_evaluation or not loop.moment.is_evaluated or loop.epochs_done == last_epoch:
        return None
    return monitored(monitor, loop, eval_losses, extension)


def check_is_known(monitor: str | None, loop: TrainManager, extension: str) -> None:
    """Raise an error if no evaluation can log the monitored metric. Call this before the first epoch."""
    sets = loop.eval_data
    if monitor is None and not sets:
        raise SettingError(
            f"{extension} has nothing to monitor: there is no evaluation set",
            hint=f'pass eval_data={{"valid": loader}}, or set another metric in {extension}: monitor="train/loss"',
        )
    suggestion = did_you_mean(monitor, sets) if monitor is not None and monitor not in sets and "/" not in monitor else ""
    if suggestion:
        raise SettingError(f"{extension} monitors {monitor!r}, which is not an evaluation set", known=", ".join(sets), hint=suggestion)
    is_loss = monitor is None or expected_name(monitor, loop) in map(loss_name, sets)
    if not is_loss and not callable(getattr(loop.writer, "last", None)):
        raise SettingError(
            f"{extension} monitors {monitor!r}, but the writer cannot return logged values",
            why=f"{type(loop.writer).__name__} has no method `last(tag)`",
            hint="remove the argument `writer` (TensorBoard() also writes event files), or monitor the loss of an evaluation set",
        )


def is_from_other_training(epoch: float | None, loop: TrainManager) -> bool:
    """Return whether the evaluation after `epoch` belongs to an earlier training run that used the same extension object."""
    now = loop.moment
    return epoch is not None and (epoch > loop.epochs_done or (epoch == loop.epochs_done and not now.is_evaluated))
