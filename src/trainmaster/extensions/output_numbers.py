"""Numbers that tell how a module's output is, on the device where it is."""

from __future__ import annotations

import math

import torch
from torch import nn

NUMBERS = ("mean", "std", "zeros", "dead", "saturated", "nonfinite")
"""All but the first two are shares from 0 to 1. `saturated` is NaN of a module that has no bounds."""

_BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}
_NEAR = 0.01
"""Saturated is what is so near to a bound, as a share of the range."""


def as_floats(output: torch.Tensor) -> torch.Tensor:
    """An output as numbers that can be averaged."""
    values = output.detach()
    values = values.abs() if values.is_complex() else values
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def silent_units(module: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Of each unit, whether it is 0 in the whole batch.

    Units are the second dimension; where an output has three, the last, as of tokens, unless the module is one of the `...1d` kind.
    """
    if values.dim() < 2:
        return (values == 0).all().reshape(1)
    unit = 2 if values.dim() == 3 and not type(module).__name__.endswith("1d") else 1
    return (values == 0).transpose(0, unit).flatten(1).all(dim=1)


def output_numbers(module: nn.Module, values: torch.Tensor, silent: torch.Tensor) -> torch.Tensor:
    """The `NUMBERS` of an output."""
    saturated = torch.full((), math.nan, dtype=values.dtype, device=values.device)
    bounds = (module.min_val, module.max_val) if type(module) is nn.Hardtanh else _BOUNDS.get(type(module))
    if bounds is not None:
        low, high = bounds
        near = _NEAR * (high - low)
        saturated = ((values <= low + near) | (values >= high - near)).to(values.dtype).mean()
    std, mean = torch.std_mean(values, correction=0)
    zeros = (values == 0).to(values.dtype).mean()
    nonfinite = 1 - values.isfinite().to(values.dtype).mean()
    return torch.stack([mean, std, zeros, silent.to(values.dtype).mean(), saturated, nonfinite]).float()
