"""Checks the arguments of a `TrainManager` and reports all problems at once."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainmaster.config.torch_call import argument_problems, first_parameter
from trainmaster.errors import SettingError, did_you_mean, shown
from trainmaster.loop.optimization import is_schedule
from trainmaster.loop.ranks import num_launched
from trainmaster.loop.writer import Writer

if TYPE_CHECKING:
    from trainmaster.loop.training import Training


class TrainDir:
    """The attribute `train_dir` of a loop. Only the constructor and `configure` can set it.

    Assigning to it is an error, because the extensions that use this folder are added only in the constructor.
    """

    def __get__(self, loop: Any, kind: type) -> Path | None:
        return None if loop is None else loop._train_dir

    def __set__(self, loop: Any, value: object) -> None:
        raise SettingError(f"train_dir={value!r} cannot be set after the loop was built", hint="pass it to the constructor: train_dir=...")


def find_device(device: str | torch.device) -> torch.device:
    """Return the torch device that `device` names.

    "auto" means the first CUDA device if there is one, else the CPU. With several ranks, "auto" assigns the ranks to
    the CUDA devices in turn.
    """
    if device == "auto":
        number = int(os.environ.get("LOCAL_RANK", "0")) if num_launched() > 1 else 0
        return torch.device(f"cuda:{number % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f"{device!r} is not a device", why=str(error).split("\n")[0], hint='"auto", "cpu", "cuda:0", ...') from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(
            f"device {str(chosen)!r} cannot be used: torch finds no CUDA device here", hint='device="auto" falls back to the CPU'
        )
    return chosen


def evaluation_sets(eval_data: Any) -> dict[str, Iterable[Any]]:
    """Return the evaluation sets as a dict from names to data. A single data set without a name becomes the set "valid"."""
    if eval_data is None or (isinstance(eval_data, (list, tuple)) and not eval_data):
        return {}
    pairs = list(eval_data.items()) if isinstance(eval_data, Mapping) else _named_pairs(eval_data)
    for name, data in pairs:
        if not isinstance(name, str) or name in ("update", "epoch", "train"):
            raise SettingError(
                f"an evaluation set cannot be called {shown(name)}",
                why="`train/loss` is the training loss" if name == "train" else None,
                hint='give it another name: eval_data={"valid": loader}',
            )
        if not isinstance(data, Iterable):
            raise SettingError(
                f"`eval_data[{name!r}]` must be an iterable of batches, not {shown(data)}", hint="pass a DataLoader or a list"
            )
    if len(dict(pairs)) != len(pairs):
        raise SettingError("two evaluation sets have the same name", where=", ".join(name for name, _ in pairs), hint="rename one")
    return dict(pairs)


def _named_pairs(eval_data: Any) -> list[tuple[Any, Any]]:
    """Return (name, data) pairs for evaluation data that is not passed as a mapping. A single data set without a name is called "valid"."""
    items = eval_data if isinstance(eval_data, (list, tuple)) else ()
    pairs = [each for each in items if isinstance(each, (tuple, list)) and len(each) == 2]
    num_named = sum(isinstance(name, str) for name, _ in pairs)
    if items and num_named == len(items):
        return [(name, data) for name, data in pairs]
    if num_named or any(isinstance(each, DataLoader) for each in (*items, *(data for _, data in pairs))):
        raise SettingError(
            f"several evaluation sets need names: a mapping or a list of (name, data) pairs, not {shown(eval_data)}",
            hint='eval_data={"valid": loader, "test": other_loader}',
        )
    if not isinstance(eval_data, Iterable) or isinstance(eval_data, (str, bytes)):
        raise SettingError(
            f"`eval_data` must be an iterable of batches, or several by name, not {shown(eval_data)}",
            hint='eval_data=loader, or eval_data={"valid": loader, "test": other_loader}',
        )
    return [("valid", eval_data)]


def other_evaluation_sets(eval_data: Any, own: Mapping[str, Iterable[Any]]) -> dict[str, Iterable[Any]]:
    """Return the evaluation sets for one call to `eval`.

    `own` contains the evaluation sets of the loop. If `eval_data` uses one of their names for different data, raise an
    error, because the metrics of both sets would have the same names.
    """
    sets = evaluation_sets(eval_data)
    if sets.get("valid") is eval_data:  # test data recorded as `valid/loss` would be misleading
        raise SettingError("the data to evaluate needs a name for its metrics", hint='eval({"test": loader})')
    for name, data in sets.items():
        if name in own and data is not own[name]:
            raise SettingError(
                f"the loop already has an evaluation set {name!r} with other data",
                why=f"both would be recorded as `{name}/loss`",
                hint=f'give it another name: eval({{"{name}_2": loader}})',
            )
    return sets


def check_arguments(loop: Training, optimizer: Any, lr_schedule: Any) -> None:
    """Raise one `SettingError` that lists all invalid arguments."""
    problems = [
        *_data_problems(loop),
        *_limit_problems(loop),
        *_loss_problems(loop),
        *_optimizer_problems(loop, optimizer, lr_schedule),
    ]
    if problems:
        raise SettingError(
            f"this {type(loop).__name__} cannot be built: {problems[0]}",
            also="\n".join(problems[1:]) or None,
            hint=f"help({type(loop).__name__}) explains every argument",
        )


def _data_problems(loop: Training) -> list[str]:
    problems: list[str] = []
    if not isinstance(loop.model, nn.Module):
        problems.append(f"`model` must be a torch.nn.Module, not {shown(loop.model)}")
    if not isinstance(loop.train_data, Iterable):
        problems.append(f"`train_data` must be an iterable of batches, not {shown(loop.train_data)}")
    if not isinstance(loop.writer, Writer):
        missing = [name for name in ("add_scalar", "add_scalars", "add_text") if not callable(getattr(loop.writer, name, None))]
        problems.append(f"`writer` lacks {', '.join(missing)}")
    if not isinstance(loop.progress, bool):
        problems.append(f"`progress` must be True or False, not {shown(loop.progress)}")
    return problems


def _limit_problems(loop: Training) -> list[str]:
    problems: list[str] = []
    limits: dict[str, Any] = {"epochs": loop.epochs, "max_steps": loop.max_steps, "max_time": loop.max_time}
    for name, value in limits.items():
        kind = Real if name == "max_time" else Integral
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not float(value) >= 0):
            problems.append(f"`{name}` must be a{' whole' if kind is Integral else ''} number of at least 0, not {shown(value)}")
    every: Any = loop.eval_every
    if not isinstance(every, Real) or isinstance(every, bool) or not 0 <= float(every) < float("inf"):
        problems.append(f"`eval_every` must be a number of epochs, 0 or more, not {shown(every)}")
    if all(value is None for value in limits.values()):
        problems.append("training would never end: set `epochs`, `max_steps` or `max_time`")
    return problems


def _loss_problems(loop: Training) -> list[str]:
    if loop.loss is not None:
        wanted = f"({', '.join(loop.loss_arguments)})"
        if isinstance(loop.loss, type) and issubclass(loop.loss, nn.Module):
            return [f"`loss` is the class {loop.loss.__name__}: create an instance, {loop.loss.__name__}()"]
        is_sum = getattr(loop.loss, "reduction", None) == "sum"
        if is_sum and loop.ranks.num > 1:
            return [f"`loss` is a sum over samples, but {loop.ranks.num} ranks need a mean: reduction='mean'"]
        if is_sum:
            warnings.warn(
                f"{type(loop.loss).__name__}(reduction='sum') depends on the batch size: recorded losses are means over samples only"
                " with reduction='mean'",
                stacklevel=4,
            )
        if not callable(loop.loss):
            return [f"`loss` must be a function of {wanted}, not {shown(loop.loss)}"]
        first = takes_targets_first(loop.loss) if loop.loss_arguments[0] == "prediction" else None
        return [f"`loss` is called with {wanted}, but takes the targets first: ({first}, ...)"] if first else []
    needed = ("train_loss_forward", "eval_loss_forward") if loop.eval_data else ("train_loss_forward",)
    if loop.is_overridden("loss_forward") or all(map(loop.is_overridden, needed)):
        return []
    return ["`loss` is None and `loss_forward` is not overridden: there is nothing to train on"]


def _missing_arguments(what: str, kind: Any, first: str) -> list[str]:
    """Check whether an optimizer or scheduler class requires arguments that the loop does not pass.

    Return a list with one error message if it does, otherwise an empty list.
    """
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        return []
    missing = [each.key.rpartition(".")[2] for each in argument_problems(kind, {}, filled=(first_parameter(kind, first),))]
    call = f"{kind.__name__}({first}, {', '.join(f'{name}=...' for name in missing)})"
    return [f"`{what}` is {kind.__name__}, which needs `{'`, `'.join(missing)}`: pass lambda {first}: {call}"] if missing else []


def takes_targets_first(function: Any) -> str | None:
    """Return the name of a function's first parameter if it usually means targets, such as scikit-learn's `y_true`, otherwise None.

    If such a function is called with the prediction first, it may silently return a wrong number.
    """
    try:
        first = next(iter(inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters), "")
    except (TypeError, ValueError):  # it has no readable signature
        return None
    return first if first in ("y_true", "target", "targets", "label", "labels", "truth") else None


def _optimizer_problems(loop: Training, optimizer: Any, lr_schedule: Any) -> list[str]:
    problems = []
    if optimizer is None and not loop.is_overridden("optimizer_step"):
        problems.append("`optimizer` is None and `optimizer_step` is not overridden: nothing would be trained")
    if not (optimizer is None or isinstance(optimizer, torch.optim.Optimizer) or callable(optimizer)):
        instead = "; pass config.make_optimizer(model)" if hasattr(optimizer, "make_optimizer") else ""
        problems.append(f"`optimizer` must be an optimizer, or a callable that takes the parameters, not {shown(optimizer)}{instead}")
    if not (lr_schedule is None or is_schedule(lr_schedule) or callable(lr_schedule)):
        instead = "; pass config.make_scheduler(model, optimizer)" if hasattr(lr_schedule, "make_scheduler") else ""
        problems.append(f"`lr_schedule` must be a schedule, or a callable that takes the optimizer, not {shown(lr_schedule)}{instead}")
    problems += _missing_arguments("optimizer", optimizer, "params")
    problems += _missing_arguments("lr_schedule", lr_schedule, "optimizer")
    choices = ("update", "epoch", *loop.eval_data)
    by = loop.schedule_by
    suggestion = did_you_mean(str(by), choices) if by not in choices and "/" not in str(by) else ""
    if by is not None and (not isinstance(by, str) or not by.strip() or suggestion):  # other text may be the name of a metric
        problems.append(f"`schedule_by` must be one of {', '.join(choices)}, or a metric, not {shown(by)} {suggestion}".rstrip())
    return problems
