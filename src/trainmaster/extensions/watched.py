"""The number that an extension watches from evaluation to evaluation: refused in time where there is none, and found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.errors import LoopError, SettingError, did_you_mean
from trainmaster.loop.metric import Metric, find_metric, is_recorded_name

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


def check_name(by: Any, example: str) -> None:
    """Refuse what cannot be the name of a number."""
    if by is not None and (not isinstance(by, str) or not by.strip()):
        raise SettingError(f"`by` names an evaluation set or a recorded number, not {by!r}", hint=example)


def metric_name(by: str | None, train_manager: TrainManager) -> str:
    """The name that the number is recorded by."""
    name = by if by is not None else next(iter(train_manager.eval_data))
    return f"losses/{name}/loss" if name in train_manager.eval_data else name


def check_is_known(by: str | None, train_manager: TrainManager, who: str) -> None:
    """Refuse, before the first epoch, a number that no evaluation can give."""
    sets = train_manager.eval_data
    if by is None and not sets:
        raise SettingError(
            f"{who} has nothing to look at: there is no evaluation set",
            hint=f'give the loop eval_data={{"valid": loader}}, or {who} the name of a recorded number: by="losses/train/loss"',
        )
    if by is not None and by not in sets and not is_recorded_name(by):
        raise SettingError(
            f"{who} looks at {by!r}, which is no evaluation set",
            known=", ".join(sets) or "there is none",
            hint=did_you_mean(by, sets) or 'a recorded number has its whole name: by="metrics/valid/accuracy"',
        )
    if by is not None and by not in sets and not callable(getattr(train_manager.writer, "last", None)):
        raise SettingError(
            f"{who} looks at {by!r}, but the writer cannot tell what was recorded",
            why=f"{type(train_manager.writer).__name__} has no method `last(tag)`",
            hint="leave `writer` out (the extension TensorBoard writes event files, too), or look at the loss of an evaluation set",
        )


def is_from_elsewhere(epoch: int | None, train_manager: TrainManager) -> bool:
    """Whether the evaluation after this epoch is not one of this training: the object was used in another one before."""
    now = train_manager.moment
    return epoch is not None and (epoch > now.epoch or (epoch == now.epoch and not now.is_evaluated))


def current_metric(by: str | None, train_manager: TrainManager, eval_losses: Mapping[str, float], who: str) -> Metric | None:
    """The number at the end of an evaluation; None before the first epoch, where what is recorded in training is not there yet."""
    name = by if by is not None else next(iter(train_manager.eval_data))
    found = find_metric(name, eval_losses, train_manager.writer)
    if found is not None:
        return found
    is_of_a_set = name in train_manager.eval_data or any(part in train_manager.eval_data for part in name.split("/"))
    if train_manager.epoch_num == 0 and not is_of_a_set:
        return None
    raise LoopError(
        f"{who} looks at {name!r}, which nobody has recorded",
        where=f"stage eval, after epoch {train_manager.epoch_num}",
        hint="an extension records it, by writer.add_scalar, no later than in post_eval_step_epoch",
    )
