"""Logs statistics of module outputs during training, such as the standard deviation and the share of dead units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trainmaster.arguments import check_int
from trainmaster.errors import SettingError
from trainmaster.extensions.epochs import is_epoch_complete, updates_before
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.extensions.layer_stats import LayerStats
from trainmaster.extensions.metric_history import heat_map
from trainmaster.extensions.module_choice import ModuleChoice, check_choices, chosen_modules
from trainmaster.figures.panels import Panel
from trainmaster.loop.batches import first_tensor
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, always

STATISTICS = ("mean", "std", "zeros", "dead", "saturated", "nonfinite")
"""The names of the statistics.

All except the first two are shares from 0 to 1. `saturated` is NaN for a module whose outputs have no bounds.
"""

_BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}
_SATURATED_SHARE = 0.01
"""An output is saturated if its distance to a bound is at most this share of the range."""
_TAG = "activations"
_DEAD_SHARE = 0.5
_TITLES = {
    "std": "standard deviation of outputs",
    "zeros": "share of zeros",
    "saturated": "share of saturated outputs",
    "nonfinite": "share of outputs that are not finite",
}


class ActivationStats(FigureObserver):
    """Logs statistics of module outputs: mean, standard deviation, and the shares of zeros, dead units, saturated and non-finite values.

    Outputs are measured in every `every`-th training batch. Forward hooks are registered only for these batches and are
    removed after the forward pass, so a copied or saved model contains no hooks. If an output is a tuple, a mapping or
    a dataclass, its first tensor is measured.

    Each statistic is logged as `activations/<module>/<statistic>`, against `step_num`. A logged value is the mean
    over the measured batches of an epoch. In long epochs, a mean is logged after every 256 measured batches. The figure
    `activations` also shows how the statistics change within an epoch.

    Args:
        modules: names or classes of the modules to measure. By default, all modules without children are measured.
    """

    def __init__(
        self, modules: ModuleChoice | Iterable[ModuleChoice] | None = None, every: int = 10, path: str | PathLike[str] | None = None
    ) -> None:
        check_int("every", every, min=1, hint="ActivationStats(every=10)")
        super().__init__(_TAG, path)
        self.every = every
        self.modules = None if modules is None else check_choices("modules", modules, 'ActivationStats(["encoder", nn.ReLU])')
        if self.modules == ():
            hint = "None measures all modules without children; ActivationStats([nn.ReLU]) measures some"
            raise SettingError("`modules` is empty, so nothing would be measured", hint=hint)
        self._chosen: dict[str, nn.Module] = {}
        self._handles: list[RemovableHandle] = []
        self._outputs: dict[str, list[torch.Tensor]] = {}
        """For each module, its statistics in this batch: one tensor per call to the module."""
        self._silent: dict[str, torch.Tensor] = {}
        """For each module, a mask of the units that were 0 in all measured batches of this epoch."""
        self._dead: list[str] = []
        self._stats = LayerStats(_TAG, STATISTICS)
        self._num_batches = 0

    # Hooks.

    def pre_train(self, loop: Any) -> None:
        measured_modules(loop.model, self.modules)  # raises an error for a wrong name before the first batch
        super().pre_train(loop)

    def pre_train_step_epoch(self, model: nn.Module, writer: Writer | None = None) -> None:
        self._chosen = measured_modules(model, self.modules)
        # The class is part of the label, because in a Sequential the name of a module is only a number.
        self._stats.set_layers({name: f"{name} {type(each).__name__}" for name, each in self._chosen.items()}, writer)
        self._silent = {}

    def pre_forward(self) -> None:
        if torch.is_grad_enabled():  # not during an evaluation
            self._num_batches += 1
            if self._num_batches % self.every == 0:
                self._outputs = {}
                self._handles = [module.register_forward_hook(self._hook(name)) for name, module in self._chosen.items()]

    @always
    def post_forward(self, fixtures: Fixtures) -> None:
        if self._handles:
            self._remove_hooks()
            is_measured = self._outputs and fixtures.get("exc_type") is None
            if is_measured and self._stats.add(updates_before(fixtures) + 1, self._table()):
                self._log(fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if is_epoch_complete(loop):
            self._log(writer)
            if self._silent:
                self._dead = dead_modules(self._silent)

    @always
    def post_train(self) -> None:
        self._remove_hooks()
        super().post_train()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def measure(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None and tensor.numel():
                values = as_floats(tensor)
                silent = silent_units(module, values)
                self._outputs.setdefault(name, []).append(output_stats(module, values, silent))
                before = self._silent.get(name)
                if before is not None and before.shape == silent.shape:
                    silent = silent & before.to(silent.device)
                self._silent[name] = silent

        return measure

    def _remove_hooks(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _table(self) -> torch.Tensor:
        """Return one row of statistics for each module.

        If a module was not called, its row is NaN. If it was called more than once, its row is the mean over the calls.
        """
        device = next(iter(self._outputs.values()))[0].device
        missing = torch.full((len(STATISTICS),), math.nan, device=device)
        rows = [torch.stack(self._outputs[name]).mean(0).to(device) if name in self._outputs else missing for name in self._chosen]
        return torch.stack(rows)

    def _log(self, writer: Writer | None) -> None:
        self._stats.log(writer)
        self._figure_writer.draw_if_due()

    # Results.

    def dead(self) -> list[str]:
        """Return the modules in which more than half of the units were 0 in all measured batches of the last epoch."""
        return list(self._dead)

    def panels(self) -> list[Panel]:
        """Return heat maps of the standard deviation and of the shares of zeros, saturated and non-finite values.

        A statistic that has always been 0 is left out.
        """
        marks = {self._stats.label(name): "dead" for name in self._dead}
        panels: list[Panel] = []
        for statistic, title in _TITLES.items():
            history = self._stats.history(statistic)
            if (history.values() > 0).any():
                panels.append(heat_map(history, title, "update", statistic, is_log=statistic == "std", marks=marks))
        return panels

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "stats": self._stats.state_dict(),
            "silent": dict(self._silent),
            "dead": list(self._dead),
            "num_batches": self._num_batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stats.load_state_dict(state["stats"])
        self._num_batches, self._dead, self._silent = state["num_batches"], list(state["dead"]), dict(state["silent"])


def measured_modules(model: nn.Module, choices: tuple[ModuleChoice, ...] | None) -> dict[str, nn.Module]:
    """Return the chosen modules, or all modules without children if `choices` is None."""
    if choices is None:
        chosen = {name: each for name, each in model.named_modules() if next(each.children(), None) is None}
    else:
        chosen = chosen_modules("modules", choices, model)
    for choice in choices or ():
        if isinstance(choice, type) and not any(isinstance(each, choice) for each in chosen.values()):
            raise SettingError(f"`modules` contains {choice.__name__}, but the model has no such module", where=type(model).__name__)
    return {name or type(each).__name__: each for name, each in chosen.items()}


def dead_modules(silent: Mapping[str, torch.Tensor]) -> list[str]:
    shares = torch.stack([units.float().mean().cpu() for units in silent.values()]).tolist()
    return [name for name, share in zip(silent, shares, strict=True) if share > _DEAD_SHARE]


def as_floats(output: torch.Tensor) -> torch.Tensor:
    values = output.detach()
    values = values.abs() if values.is_complex() else values
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def silent_units(module: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Return a mask of the units that are 0 for all samples of the batch.

    The units are in dimension 1. For a 3-D output (batch, tokens, features), they are in the last dimension, unless the
    name of the module's class ends in "1d".
    """
    if values.dim() < 2:
        return (values == 0).all().reshape(1)
    unit = 2 if values.dim() == 3 and not type(module).__name__.endswith("1d") else 1
    return (values == 0).transpose(0, unit).flatten(1).all(dim=1)


def output_stats(module: nn.Module, values: torch.Tensor, silent: torch.Tensor) -> torch.Tensor:
    """Return the `STATISTICS` of an output."""
    saturated = torch.full((), math.nan, dtype=values.dtype, device=values.device)
    bounds = (module.min_val, module.max_val) if type(module) is nn.Hardtanh else _BOUNDS.get(type(module))
    if bounds is not None:
        low, high = bounds
        margin = _SATURATED_SHARE * (high - low)
        saturated = ((values <= low + margin) | (values >= high - margin)).to(values.dtype).mean()
    std, mean = torch.std_mean(values, correction=0)
    zeros = (values == 0).to(values.dtype).mean()
    nonfinite = 1 - values.isfinite().to(values.dtype).mean()
    return torch.stack([mean, std, zeros, silent.to(values.dtype).mean(), saturated, nonfinite]).float()
