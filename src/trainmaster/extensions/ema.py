"""An average of the weights over the updates, which evaluations use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainmaster.errors import LoopError, SettingError, StateError, did_you_mean
from trainmaster.stages import Extension


class EMA(Extension):
    """Keeps an exponential moving average of the weights; evaluations and predictions use it in their place.

    After each update `average = decay * average + (1 - decay) * weights`; the first one is a copy. Training never sees the average: its
    weights are the same bits as without. `pre_eval` and `post_eval` hooks see the weights of training, all that is inside of them the
    average. Only parameters are averaged; buffers, such as the means of a batch norm, are the model's own.
    """

    has_weights = True

    def __init__(self, decay: float = 0.999) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise SettingError(f"`decay` is a number from 0 to below 1, not {decay!r}", hint="EMA(0.999): the larger, the slower")
        self.decay = decay
        self.num_updates = 0
        """Updates that went into the average."""
        self._weights: dict[str, torch.Tensor] = {}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The averages by the names of their parameters; none before the first update."""
        return dict(self._weights)

    def copy_to(self, model: nn.Module) -> None:
        """Put the averages into the parameters of a model. Its buffers stay as they are."""
        if not self._weights:
            raise LoopError("EMA has no weights yet: there was no update", hint="train first")
        parameters = _averaged(model)
        for name, average in self._weights.items():
            if name not in parameters:
                slip = did_you_mean(name, parameters)
                raise StateError(f"this {type(model).__name__} has no parameter `{name}`", hint=slip or "give a model as the trained one")
            if parameters[name].shape != average.shape:
                raise StateError(
                    f"the parameter `{name}` has the shape {tuple(parameters[name].shape)}, its average {tuple(average.shape)}",
                    hint="give a model as the trained one",
                )
        with torch.no_grad():
            for name, average in self._weights.items():
                parameters[name].copy_(average)

    # The hooks.

    def post_optimizer_step(self, model: nn.Module) -> None:
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        weights = {}
        for name, parameter in _averaged(model).items():
            weight, average = parameter.detach(), self._weights.get(name)
            if average is None or average.shape != weight.shape:  # the first update, or a parameter that came later
                weights[name] = weight.clone()
            else:
                weights[name] = average = average.to(weight)  # a restored one may be elsewhere
                averages, others = groups.setdefault((weight.device, weight.dtype), ([], []))
                averages.append(average)
                others.append(weight)
        average_all = get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]  # made here: it cannot go to another process
        for averages, others in groups.values():
            average_all(averages, others, self.num_updates)
        self._weights = weights
        self.num_updates += 1

    def around_eval(self, model: nn.Module) -> Iterator[None]:
        with self._in_use(model):
            yield

    def around_predict(self, model: nn.Module) -> Iterator[None]:
        with self._in_use(model):
            yield

    @contextmanager
    def _in_use(self, model: nn.Module) -> Iterator[None]:
        """The model computes with the averages. Its own weights are not copied but set aside, and come back bit by bit.

        In an evaluation within an evaluation, what is set aside and comes back are the averages themselves.
        """
        kept = []
        try:
            for name, parameter in _averaged(model).items():
                average = self._weights.get(name)
                if average is not None and average.shape == parameter.shape:  # one that came after the last update has none
                    kept.append((parameter, parameter.data))
                    # By `.data`, because an evaluation may happen between a forward and a backward pass, which `copy_` would break.
                    parameter.data = average.to(parameter)
            yield
        finally:
            for parameter, weight in kept:
                parameter.data = weight

    # Its state.

    def state_dict(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_updates, self._weights = state["num_updates"], dict(state["weights"])


def _averaged(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that can be averaged, by name; tied ones are one. A lazy one that no forward pass has seen has no values."""
    return {name: each for name, each in model.named_parameters() if not is_lazy(each) and each.is_floating_point()}
