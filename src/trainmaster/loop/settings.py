"""The arguments of a `TrainManager`: normalised, and refused all at once where they cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.loop.metric import is_recorded_name
from trainmaster.loop.writer import Writer

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


def chosen_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f"{device!r} is no device", why=str(error).split("\n")[0], hint='"auto", "cpu", "cuda:0", ...') from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(
            f"device {str(chosen)!r} cannot be used: torch finds no CUDA device here", hint='device="auto" takes what there is'
        )
    return chosen


def evaluation_sets(given: Any) -> dict[str, Iterable[Any]]:
    """The evaluation sets by name, from a mapping or from pairs."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, (list, tuple)) and all(isinstance(each, (tuple, list)) and len(each) == 2 for each in given):
        pairs = [(each[0], each[1]) for each in given]
    else:
        raise SettingError(
            f"`eval_data` names its sets: a mapping or a list of (name, data) pairs, not {shown(given)}", hint='eval_data={"valid": loader}'
        )
    for name, data in pairs:
        if not isinstance(name, str) or name in ("update", "epoch"):
            raise SettingError(
                f"an evaluation set cannot be called {shown(name)}", hint='give it a name of its own: eval_data={"valid": loader}'
            )
        if not isinstance(data, Iterable):
            raise SettingError(f"`eval_data[{name!r}]` is an iterable of batches, not {shown(data)}", hint="give a DataLoader or a list")
    if len(dict(pairs)) != len(pairs):
        raise SettingError("two evaluation sets have the same name", where=", ".join(name for name, _ in pairs), hint="rename one")
    return dict(pairs)


def is_schedule(value: Any) -> bool:
    """A schedule itself, not a recipe for one."""
    return value is not None and not isinstance(value, type) and callable(getattr(value, "step", None))


def check_settings(manager: TrainManager, optimizer: Any, lr_schedule: Any) -> None:
    """Refuse arguments that cannot work, all of them in one error."""
    problems = [
        *_data_problems(manager),
        *_limit_problems(manager),
        *_loss_problems(manager),
        *_optimizer_problems(manager, optimizer, lr_schedule),
    ]
    if problems:
        raise SettingError(
            f"this {type(manager).__name__} cannot be built: {problems[0]}",
            also="\n".join(problems[1:]) or None,
            hint=f"help({type(manager).__name__}) explains every argument",
        )


def check_schedule(lr_schedule: Any, schedule_by: str, sets: Iterable[str]) -> None:
    """Refuse a schedule that needs a loss where it would not get one."""
    if isinstance(lr_schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) and schedule_by in ("update", "epoch"):
        raise SettingError(
            f"ReduceLROnPlateau steps on a loss, not after each {schedule_by}",
            hint=" or ".join(f'schedule_by="{name}"' for name in sets) or "give eval_data, and schedule_by the name of the set to watch",
        )


def _data_problems(manager: TrainManager) -> list[str]:
    problems: list[str] = []
    if not isinstance(manager.model, nn.Module):
        problems.append(f"`model` is a torch.nn.Module, not {shown(manager.model)}")
    if not isinstance(manager.train_data, Iterable):
        problems.append(f"`train_data` is an iterable of batches, not {shown(manager.train_data)}")
    if not isinstance(manager.writer, Writer):
        missing = [name for name in ("add_scalar", "add_scalars", "add_text") if not callable(getattr(manager.writer, name, None))]
        problems.append(f"`writer` lacks {', '.join(missing)}")
    return problems


def _limit_problems(manager: TrainManager) -> list[str]:
    problems: list[str] = []
    limits: dict[str, Any] = {"epochs": manager.epochs, "max_steps": manager.max_steps, "max_time": manager.max_time}
    for name, value in limits.items():
        kind = Real if name == "max_time" else Integral
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not float(value) >= 0):
            problems.append(f"`{name}` is a{' whole' if kind is Integral else ''} number of at least 0, not {shown(value)}")
    if all(value is None for value in limits.values()):
        problems.append("training has no end: give `epochs`, `max_steps` or `max_time`")
    return problems


def _loss_problems(manager: TrainManager) -> list[str]:
    if manager.loss is not None:
        return [] if callable(manager.loss) else [f"`loss` is a function of (batch, prediction), not {shown(manager.loss)}"]
    needed = ("train_loss_forward", "eval_loss_forward") if manager.eval_data else ("train_loss_forward",)
    if manager.is_overridden("loss_forward") or all(map(manager.is_overridden, needed)):
        return []
    return ["`loss` is None and `loss_forward` is not overridden: there is nothing to train on"]


def _optimizer_problems(manager: TrainManager, optimizer: Any, lr_schedule: Any) -> list[str]:
    problems = []
    if optimizer is None and not manager.is_overridden("optimizer_step"):
        problems.append("`optimizer` is None and `optimizer_step` is not overridden: nothing would be trained")
    if not (optimizer is None or isinstance(optimizer, torch.optim.Optimizer) or callable(optimizer)):
        problems.append(f"`optimizer` is an optimizer, or a callable that gets the parameters, not {shown(optimizer)}")
    if not (lr_schedule is None or is_schedule(lr_schedule) or callable(lr_schedule)):
        problems.append(f"`lr_schedule` is a schedule, or a callable that gets the optimizer, not {shown(lr_schedule)}")
    choices = ("update", "epoch", *manager.eval_data)
    if not isinstance(manager.schedule_by, str) or (manager.schedule_by not in choices and not is_recorded_name(manager.schedule_by)):
        slip = did_you_mean(str(manager.schedule_by), choices)
        problems.append(f"`schedule_by` is one of {', '.join(choices)}, not {shown(manager.schedule_by)} {slip}".rstrip())
    return problems


def shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
