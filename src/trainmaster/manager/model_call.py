"""Converts models to `torch.nn.Module`, and calls them with a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from trainmaster.config import ConfigBase
from trainmaster.errors import NoTrainerError, SettingError, shown
from trainmaster.loop.batches import outline
from trainmaster.loop.eval_metrics import is_metric
from trainmaster.loop.state import Stateful


class CallableModel(nn.Module):
    """Wraps a model that is not a `torch.nn.Module`. The model's state is saved if it has `state_dict` and `load_state_dict`."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def get_extra_state(self) -> Any:
        return self.function.state_dict() if isinstance(self.function, Stateful) else {}

    def set_extra_state(self, state: Any) -> None:
        if isinstance(self.function, Stateful):
            self.function.load_state_dict(state)


class NoLightningTrainer:
    """Replaces the `trainer` of a Lightning module, and provides `current_epoch` and `global_step`.

    Without it, `current_epoch` and `global_step` of the module would always be 0. If the module uses an attribute that only a Lightning
    trainer has, an error is raised.
    """

    is_global_zero = True
    global_rank = local_rank = 0
    world_size = 1
    progress_bar_callback = logger = None

    def __init__(self) -> None:
        self.current_epoch = self.global_step = 0
        self.loggers: list[Any] = []

    def move_to(self, current_epoch: int, global_step: int) -> None:
        self.current_epoch, self.global_step = current_epoch, global_step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy` and `pickle` look for special methods
            raise AttributeError(name)
        raise NoTrainerError(
            f"a Lightning module uses `trainer.{name}`, but trainmaster trains it without a Lightning trainer",
            known="current_epoch, global_step",
            hint="override the wrapper's `train_step`, `create_optimizer` or `extensions`; see docs/coming_from/lightning.md",
        )


class LightningModel(nn.Module):
    """Calls `training_step`, `validation_step` and `test_step` of a Lightning module without a Lightning trainer.

    These methods return the loss. Values that the module logs during an evaluation become metrics.
    `configure_optimizers` is not called, because the config specifies the optimizer.
    """

    metrics: dict[str, Any]
    """The metric objects that the last step has logged, as in `self.log("val_acc", self.accuracy)`."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self._logged: dict[str, Any] = {}
        self.metrics = {}
        self._is_testing = False
        self._batch_idx = 0
        self._trainer = module.trainer = NoLightningTrainer()
        module.log, module.log_dict = self._log, self._log_dict  # without a trainer, Lightning's own methods only warn
        self._has_validation, self._has_test = self.has_own("validation_step"), self.has_own("test_step")

    def begin_batch(self, batch_idx: int, current_epoch: int, global_step: int, is_testing: bool = False) -> None:
        """Set the batch index, epoch and step for the next call. `is_testing` means that the batch is from the test set."""
        self._batch_idx, self._is_testing = batch_idx, is_testing
        self._trainer.move_to(current_epoch, global_step)

    def has_own(self, method: str) -> bool:
        """Return whether the module overrides this Lightning method."""
        kinds = [each for each in type(self.module).__mro__ if not each.__module__.startswith(("lightning.", "pytorch_lightning."))]
        return any(method in vars(each) for each in kinds)

    def forward(self, batch: Any) -> tuple[dict[str, Any], Any]:
        self._logged.clear()
        if self.module._trainer is not self._trainer:  # a copy of a Lightning module has no trainer
            self.module.trainer = self._trainer
        step = self._step()
        try:
            result = step(*(batch, self._batch_idx)[: len(inspect.signature(step).parameters)])
        except (TypeError, ValueError, IndexError) as error:  # raised by a step that unpacks its batch
            if isinstance(batch, torch.Tensor):
                call = f"`{type(self.module).__name__}.{step.__name__}`"
                error.add_note(f"{call} was called with a tensor as the batch; to predict, call the Lightning module: model.module(x)")
            raise
        values = dict(result) if isinstance(result, Mapping) else {"loss": result}
        loss = values.pop("loss", None)
        self.metrics = {name: value for name, value in self._logged.items() if is_metric(value)}
        logged = {name: _as_tensor(value) for name, value in self._logged.items() if name not in self.metrics}
        return {**logged, **values}, loss

    def _step(self) -> Callable[..., Any]:
        if not self.training and self._is_testing and self._has_test:
            return self.module.test_step  # type: ignore[no-any-return]
        if not self.training and self._has_validation:
            return self.module.validation_step  # type: ignore[no-any-return]
        return self.module.training_step  # type: ignore[no-any-return]

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        self._logged[name] = value

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        self._logged.update(values.items())  # `items()` of a `MetricCollection` adds its prefix to the names


def check_takes_config(model_class: Callable[..., Any], config: ConfigBase) -> None:
    """Raise an error if the first parameter of `model_class` is not meant for the config."""
    try:
        signature = inspect.signature(model_class)
    except (TypeError, ValueError):  # the class has no Python signature
        return
    parameters = list(signature.parameters.values())
    try:
        signature.bind(config)
    except TypeError as error:
        why = str(error)
    else:
        first = parameters[0]
        if _is_for_config(first, config) or (first.default is first.empty and not any(each.name in config for each in parameters)):
            return
        why = f"the config would be its `{first.name}`"
    name = getattr(model_class, "__name__", type(model_class).__name__)
    raise SettingError(
        f"`{name}({', '.join(map(str, parameters))})` does not take the config",
        why=f"a ModelWrapper calls `{name}(config.model_config)`, but {why}",
        hint="write `def __init__(self, config): ...`, or override `create_model(config)` of the wrapper",
    )


def _is_for_config(parameter: inspect.Parameter, config: ConfigBase) -> bool:
    """Return whether the name or the annotation of a parameter shows that it is meant for the config."""
    name, kind = parameter.name.lower(), parameter.annotation
    annotated = (kind if isinstance(kind, str) else getattr(kind, "__name__", "")).rpartition(".")[2]
    kinds = [each.__name__ for each in type(config).__mro__ if issubclass(each, ConfigBase)]
    return "config" in name or "cfg" in name or annotated in kinds


def as_module(model: Any) -> nn.Module:
    """Return the model as a `torch.nn.Module`."""
    if any(kind.__name__ == "LightningModule" for kind in type(model).__mro__):
        return LightningModel(model)
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type) or not callable(model):
        raise SettingError(f"`model_class` returned {shown(model)}: expected a model, which is called with a batch")
    return CallableModel(model)


def call_model(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Call a model with a batch. A list is passed as positional arguments, and a dict as keyword arguments."""
    if isinstance(model, LightningModel):
        result = model(batch)
    elif isinstance(batch, Mapping):
        result = model(**batch)
    elif isinstance(batch, list):
        result = model(*batch)
    else:
        result = model(batch)
    return checked_step(result, f"`{type(model).__name__}.forward`")


def checked_step(result: Any, what: str) -> tuple[Any, Any]:
    """Check the result of a model or a training step, and return the outputs and the loss.

    A loss with several values is averaged.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise SettingError(f"{what} returned {outline(result)}: expected (outputs, loss)", hint="return out, loss; or out, None")
    outputs, loss = result
    if not (loss is None or isinstance(loss, torch.Tensor)):
        raise SettingError(f"{what} returned the loss {shown(loss)}: expected a tensor or None", hint="return out, loss; without .item()")
    return outputs, loss.mean() if loss is not None and loss.numel() != 1 else loss


def named_values(model: nn.Module, batch: Any, outputs: Any) -> dict[str, Any]:
    """Return the values in a batch and the model's outputs, by name.

    If the batch is not a dict, its values are named after the model's parameters. An output without a name is called `prediction`.
    """
    if isinstance(batch, Mapping):
        values = dict(batch)
    else:
        function = model.function if isinstance(model, CallableModel) else model.forward
        values = dict(zip(inspect.signature(function).parameters, batch if isinstance(batch, list) else [batch], strict=False))
    return {**values, **(outputs if isinstance(outputs, Mapping) else {"prediction": outputs})}


def _as_tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).detach()
