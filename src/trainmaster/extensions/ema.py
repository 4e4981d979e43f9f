"""Keeps an exponential moving average of the weights, and uses it in evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainmaster.arguments import check_number
from trainmaster.errors import LoopError, StateError
from trainmaster.loop.sharding import refuse_shards
from trainmaster.stages import Extension


class EMA(Extension):
    """Keeps an exponential moving average of the weights; evaluations and predictions use it instead of the weights.

    After each update, `average = decay * average + (1 - decay) * weights`; the first average is a copy of the weights.
    Training does not use the average, so the trained weights are bit-for-bit the same as without EMA. `pre_eval` and
    `post_eval` hooks see the training weights; all hooks in between see the average. Only parameters are averaged;
    buffers, such as the running means of a batch norm, are used unchanged.
    """

    on_every_rank = True

    def __init__(self, decay: float = 0.999) -> None:
        check_number("decay", decay, min=0, below=1, hint="EMA(0.999): a larger decay averages more updates")
        self.decay = decay
        self.num_updates = 0
        """The number of updates that the average includes."""
        self._weights: dict[str, torch.Tensor] = {}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The average of each parameter, by name. The dict is empty before the first update."""
        return dict(self._weights)

    def copy_to(self, model: nn.Module) -> None:
        """Copy the averages to the parameters of a model. The buffers of the model do not change."""
        if not self._weights:
            raise LoopError("EMA has no weights before the first update", hint="train first")
        parameters = _averaged(model)
        for name, average in self._weights.items():
            if name not in parameters or parameters[name].shape != average.shape:
                fact = f"this {type(model).__name__} has no parameter `{name}` of the shape {tuple(average.shape)}"
                raise StateError(fact, hint="pass a model like the trained one")
        with torch.no_grad():
            for name, average in self._weights.items():
                parameters[name].copy_(average)

    # Hooks.

    def pre_train(self, model: nn.Module) -> None:
        refuse_shards(model, "EMA")

    def post_optimizer_step(self, model: nn.Module) -> None:
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        weights = {}
        for name, parameter in _averaged(model).items():
            weight, average = parameter.detach(), self._weights.get(name)
            if average is None or average.shape != weight.shape:  # the first update, or a new parameter
                weights[name] = weight.clone()
            else:
                weights[name] = average = average.to(weight)  # a restored average may be on a different device
                averages, others = groups.setdefault((weight.device, weight.dtype), ([], []))
                averages.append(average)
                others.append(weight)
        average_all = get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]  # created here, because it cannot be pickled
        for averages, others in groups.values():
            average_all(averages, others, self.num_updates)
        self._weights = weights
        self.num_updates += 1

    def around_eval(self, model: nn.Module) -> Iterator[None]:
        with self._averages_in(model):
            yield

    def around_predict(self, model: nn.Module) -> Iterator[None]:
        with self._averages_in(model):
            yield

    @contextmanager
    def _averages_in(self, model: nn.Module) -> Iterator[None]:
        """Use the averages as the parameters of a model inside the `with` block, and restore the original tensors afterwards."""
        weights = []
        try:
            for name, parameter in _averaged(model).items():
                average = self._weights.get(name)
                if average is not None and average.shape == parameter.shape:  # a new parameter has no average yet
                    weights.append((parameter, parameter.data))
                    # Set `.data`, because `copy_` would break the backward pass if a hook runs an evaluation after the forward pass.
                    parameter.data = average.to(parameter)
            yield
        finally:
            for parameter, weight in weights:
                parameter.data = weight

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_updates, self._weights = state["num_updates"], dict(state["weights"])


def _averaged(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that can be averaged, by name.

    Integer parameters are left out, and so are lazy parameters before the first forward pass.
    """
    return {name: each for name, each in model.named_parameters() if not is_lazy(each) and each.is_floating_point()}
