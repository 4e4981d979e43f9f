"""`ModelWrapper`: a model with its data and metrics, to be trained by a `ProtoTrainer` or a `ParallelTrainer`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from trainmaster.config.near_miss import is_near_miss
from trainmaster.errors import SettingError, nearest
from trainmaster.stages.extension import is_marked_not_a_hook
from trainmaster.stages.extension_map import ExtensionsLike

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from trainmaster.config import RunConfig

ModelStep = tuple[Any, Any]
"""The outputs of a model for one batch, and the loss, which may be None."""

_RUN_ATTRIBUTES = ("config", "model", "optimizer", "scheduler", "device", "train_dataloader", "val_dataloader", "test_dataloader")


class ModelWrapper:
    """A model with its data and metrics. Write a subclass, and override the methods that your training needs.

    ```python
    class Digits(ModelWrapper):
        def make_dataloader_train(self, config):
            return DataLoader(digits("train"), batch_size=config["train_config.batch_size"], shuffle=True)

        def make_dataloader_val(self, config):
            return DataLoader(digits("test"), batch_size=100)

        def evaluation_functions(self):
            return {"accuracy": lambda prediction, labels: (prediction == labels).float().mean()}

    ProtoTrainer(Digits(DigitsModel), run_config).launch()
    ```

    `model_class` is called with `config.model_config`. It may be a class or any function that returns a model: a
    `torch.nn.Module`, a Lightning module, or another callable. If it takes other arguments, override `create_model`.

    The model is called with a batch: a list is passed as positional arguments, a dict as keyword arguments, and
    anything else as a single argument. It returns its outputs and the loss: `(outputs, loss)`. A loss of None means
    that the model updates its own weights.

    A wrapper can be used for many runs. Each run uses its own copy, in which `model`, `optimizer`, `scheduler`,
    `device`, `config` (with `Derived` fields set) and `train_dataloader`, `val_dataloader`, `test_dataloader` are
    available.
    """

    config: Any
    model: nn.Module
    optimizer: Optimizer | None
    scheduler: Any
    device: torch.device
    train_dataloader: Any
    val_dataloader: Any
    test_dataloader: Any

    _loop: Any = None

    def __init__(self, model_class: Callable[[Any], Any]) -> None:
        torch = sys.modules.get("torch")  # an `nn.Module` can exist only if torch has been imported
        if torch is not None and isinstance(model_class, torch.nn.Module):
            kind = type(model_class).__name__
            raise SettingError(f"`model_class` is an instance of {kind}", hint=f"pass the class: {type(self).__name__}({kind})")
        if not callable(model_class):
            raise SettingError(f"model_class={model_class!r:.60}: expected a class, or a function that returns the model for a config")
        self.model_class = model_class

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = _overridable()
        for name in dir(cls):
            if name.startswith("_") or hasattr(ModelWrapper, name) or is_marked_not_a_hook(getattr(cls, name, None)):
                continue
            meant = [each for each in known if is_near_miss(name, each)] or [
                each for each in nearest(name, known, 1) if _is_alike(name, each)
            ]
            if meant and callable(getattr(cls, name, None)):
                raise SettingError(
                    f"`{cls.__name__}.{name}` is never called: ModelWrapper has no such method",
                    known=", ".join(known),
                    hint=f"did you mean `{meant[0]}`? If it is a method of your own, mark it with `@not_a_hook`",
                )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            loop = self._loop if name in _RUN_ATTRIBUTES else None
            if loop is not None:
                return loop.wrapper_attribute(name)
            if name in _RUN_ATTRIBUTES:
                raise AttributeError(f"`{type(self).__name__}.{name}` exists only while a trainer uses a copy of this wrapper")
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _copy_for(self, loop: Any) -> Self:
        """Return a copy for one run. The copy reads attributes such as `model` from `loop`."""
        copied = copy.copy(self)
        copied._loop = loop
        return copied

    # ---- data

    def make_dataloader_train(self, config: Any) -> Iterable[Any]:
        """Return the training data loader. `config` is the whole run config."""
        raise NotImplementedError(f"{type(self).__name__} has no `make_dataloader_train(config)`")

    def make_dataloader_val(self, config: Any) -> Iterable[Any] | None:
        """Return the data loader for the set `valid`, which is evaluated during training."""
        return None

    def make_dataloader_test(self, config: Any) -> Iterable[Any] | None:
        """Return the data loader for the set `test`, which only `ProtoTrainer.evaluate` uses."""
        return None

    def config_parser(self, config: Any) -> Any:
        """Set the `Derived` fields of the config, for example from `self.train_dataloader`.

        The config is frozen afterwards.
        """
        return config

    # ---- the model, its optimizer and its extensions

    def create_model(self, config: Any) -> Any:
        """Return the model. By default, this is `model_class(config.model_config)`."""
        from trainmaster.manager.model_call import check_takes_config

        check_takes_config(self.model_class, config.model_config)
        return self.model_class(config.model_config)

    def create_optimizer(self, model: nn.Module, config: RunConfig) -> Optimizer | None:
        """Return the optimizer for the parameters of the model. By default, `train_config.optimizer_config` creates it."""
        return config.train_config.optimizer_config.make_optimizer(model)

    def create_scheduler(self, model: nn.Module, optimizer: Optimizer, config: RunConfig) -> Any:
        """Return the learning-rate schedule, or None. By default, `train_config.scheduler_config` creates it.

        If you override this method, `scheduler_config.step_when` still determines when the schedule steps. Without a `scheduler_config`,
        it steps after each update. To step after each epoch, set `scheduler_config` to `{"name": "none", "step_when": "epoch"}`.
        """
        schedule = config.train_config.scheduler_config
        return None if schedule is None else schedule.make_scheduler(model, optimizer)

    def extensions(self) -> ExtensionsLike:
        """Return additional extensions for the loop."""
        return ()

    # ---- steps

    def model_step(self, model: nn.Module, batch: Any) -> ModelStep:
        """Call the model with a batch. Training, evaluation and prediction all use this method."""
        from trainmaster.manager.model_call import call_model

        return call_model(model, batch)

    def train_step(self, batch: Any) -> ModelStep:
        """Train on one batch, and return the outputs and the loss.

        The trainer calls `backward` and updates the weights if the loss has gradients. If you update the weights
        yourself, return `loss.detach()` or None as the loss. A detached loss is only recorded.
        """
        return self.model_step(self.model, batch)

    def train_loop(self, batches: Iterator[Any]) -> Iterator[ModelStep]:
        """Train on the batches of an epoch. For each batch, yield the result of `train_step`.

        If a run resumes in the middle of an epoch, this method is called again with the remaining batches, so the local
        variables of an override are lost.
        """
        for batch in batches:
            yield self.train_step(batch)

    # ---- evaluation

    def evaluation_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return metric functions by name. Their parameters are named after model outputs and values in a batch.

        A function is called once per set, with the values of all batches together. If the model does not return a dict,
        its output is called `prediction`. The metrics are recorded as `valid/<name>`, `test/<name>` and `train/<name>`.
        """
        return {}

    def custom_evaluation(self, model: nn.Module, dataloader: Iterable[Any]) -> Mapping[str, float] | None:
        """Return additional metrics for an evaluation set, by name."""
        return None


def _overridable() -> list[str]:
    return [name for name, value in vars(ModelWrapper).items() if callable(value) and not name.startswith("_")]


def _is_alike(name: str, known: str) -> bool:
    """Return whether `name` looks like a misspelling of `known`.

    This is the case if they differ only by one or two extra characters at the end of either name.

    Names of up to 8 characters are ignored.
    """
    return len(name) > 8 and abs(len(name) - len(known)) <= 2 and (name.startswith(known) or known.startswith(name))
