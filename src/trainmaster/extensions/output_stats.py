"""Statistics of a module's output, computed on its device."""

from __future__ import annotations

import math

import torch
from torch import nn

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
