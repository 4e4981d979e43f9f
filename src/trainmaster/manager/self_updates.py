"""Supports models that update their own weights: saves their optimizers, and warns if nothing updates the weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trainmaster.stages import Extension, Observer
from trainmaster.text import counted


class UpdateCheck(Observer):
    """Warns after the first epoch if no parameter has changed, or if some parameters of the optimizer had no gradient."""

    def __init__(self) -> None:
        self._versions: list[int] = []

    def pre_train_step_epoch(self, model: nn.Module, epoch_num: int) -> None:
        self._versions = [each._version for each in model.parameters()] if epoch_num == 0 else []

    def post_train_step_epoch(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        versions, self._versions = self._versions, []
        if versions and versions == [each._version for each in model.parameters()]:
            warnings.warn(
                "nothing has changed the parameters of the model in the first epoch: its loss is None or has no gradients, so the model or"
                " `train_step` must update them",
                stacklevel=2,
            )
        elif versions and optimizer is not None:
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            optimized = [each for group in optimizer.param_groups for each in group["params"]]
            unused = [names.get(id(each), "a parameter") for each in optimized if each.grad is None]
            if unused and len(unused) < len(optimized):
                shown = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
                warnings.warn(
                    f"{counted(len(unused), 'parameter')} of the optimizer had no gradient in the first epoch: {shown}",
                    stacklevel=2,
                )


class InnerOptimizers(Extension):
    """Saves the optimizers that a model has as attributes. This supports models that update their own weights."""

    is_optional = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def _optimizers(self) -> dict[str, Optimizer]:
        modules = self._model.named_modules()
        found = ((f"{path}.{name}", each) for path, module in modules for name, each in vars(module).items())
        return {name: each for name, each in found if isinstance(each, Optimizer)}

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self._optimizers().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, each in self._optimizers().items():
            if name in state:
                each.load_state_dict(state[name])
