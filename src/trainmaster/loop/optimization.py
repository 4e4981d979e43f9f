"""Builds the optimizer and the learning-rate schedule of a `TrainManager`, and decides when the schedule steps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trainmaster.config.scheduler_config import step_when_of
from trainmaster.errors import LoopError, SettingError
from trainmaster.loop.metric import monitored
from trainmaster.loop.unregistered import REMEDY, find_unregistered, list_unregistered

if TYPE_CHECKING:
    from trainmaster.loop.training import Training


def make_optimizer(model: nn.Module, make: Callable[[Any], Optimizer]) -> Optimizer:
    """Return the optimizer that `make` creates for the model's parameters that require a gradient."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        why = "all its parameters are frozen" if any(True for _ in model.parameters()) else "it has no parameters"
        hint = "evaluate it with eval(), pass your own optimizer, or check that layers are attributes of the module"
        if hidden := find_unregistered(model):
            why, hint = f"not in model.parameters(): {list_unregistered(hidden)}", REMEDY
        raise SettingError(f"the model {type(model).__name__} has no parameter to train", why=why, hint=hint)
    return make(parameters)


def warn_of_unrelated_optimizer(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Warn if the optimizer holds none of the model's parameters, because training would not change the model."""
    own = {id(each) for each in model.parameters()}
    updated = {id(each) for group in (optimizer.param_groups if optimizer is not None else ()) for each in group["params"]}
    if own and updated and own.isdisjoint(updated):
        warnings.warn(
            f"the optimizer has no parameter of the model {type(model).__name__}, so training does not change it; create it with the"
            " parameters of the same model object",
            stacklevel=2,
        )


def parameters_with_used_gradients(loop: Training) -> list[nn.Parameter]:
    """Return the parameters whose gradients were used in an update.

    These gradients are zeroed before the next backward pass, so a captured state need not include them.
    """
    if loop.is_overridden("zero_grad"):
        return []
    if loop.optimizer is None:
        return list(loop.model.parameters()) if type(loop.model).zero_grad is nn.Module.zero_grad else []
    if type(loop.optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(loop.optimizer):
        return []
    return [each for group in loop.optimizer.param_groups for each in group["params"]]


def all_parameters(model: nn.Module, optimizer: Optimizer | None) -> list[torch.Tensor]:
    """Return the parameters of the model, and those that only the optimizer holds, such as parameters of a loss."""
    groups = () if optimizer is None else optimizer.param_groups
    return list(dict.fromkeys([*model.parameters(), *(each for group in groups for each in group["params"])]))


def is_schedule(value: Any) -> bool:
    """Return whether `value` is a schedule, and not a class or function that makes one."""
    return value is not None and not isinstance(value, type) and callable(getattr(value, "step", None))


def takes_metric(schedule: Any) -> bool:
    """Return whether the `step` method of a schedule takes a metric, as in ReduceLROnPlateau.

    Other schedules would interpret the metric as an epoch number.
    """
    parameters = inspect.signature(schedule.step).parameters.values()
    return any(each.name == "metrics" or (each.default is each.empty and each.kind is not each.VAR_KEYWORD) for each in parameters)


def step_moment(lr_schedule: Any, schedule_by: str | None, sets: Iterable[str]) -> str:
    """Return when a schedule steps: "update", "epoch", or the name of the metric or evaluation set that it steps on.

    Without `schedule_by`, a schedule that was made by a `SchedulerConfig` steps as the config specifies, and any other
    schedule steps after each update. Raise an error if `schedule_by` contradicts the config.
    """
    moment = schedule_by or "update"
    step_when = step_when_of(lr_schedule)
    if step_when is not None:
        requested = {"update": "train", "epoch": "epoch", None: step_when}.get(schedule_by, "val")
        if requested != step_when:
            raise SettingError(
                f'schedule_by="{schedule_by}", but the SchedulerConfig of {type(lr_schedule).__name__} has step_when="{step_when}"',
                hint=f'leave `schedule_by` out, or set step_when="{requested}" in the config',
            )
        without_sets = "update" if takes_metric(lr_schedule) else "epoch"  # the first case is an error, see below
        moment = schedule_by or {"train": "update", "epoch": "epoch", "val": next(iter(sets), without_sets)}[step_when]
    if isinstance(lr_schedule, ReduceLROnPlateau) and moment in ("update", "epoch"):
        raise SettingError(
            f"ReduceLROnPlateau steps on a loss, not after each {moment}",
            hint=" or ".join(f'schedule_by="{name}/loss"' for name in sets)
            or "pass eval_data, and set schedule_by to the metric to step on",
        )
    return moment


def schedule_step_arguments(loop: Training, moment: str) -> tuple[float, ...]:
    """Return the arguments for the schedule's `step` after an evaluation: the metric if the schedule takes one, otherwise none."""
    losses = loop.fixtures["eval_losses"]
    if moment in loop.eval_data and moment not in losses:
        raise LoopError(
            f"lr_schedule steps on the loss of {moment!r}, which was not recorded",
            why="the extension `eval_state`, which fills the fixture `eval_losses`, was replaced",
            hint=f'do the same in your extension: eval_losses["{moment}"] = ...',
        )
    metric = monitored(moment, loop, losses, "lr_schedule")
    return (metric.value,) if metric is not None and takes_metric(loop.lr_schedule) else ()
