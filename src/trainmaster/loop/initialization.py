"""An alternative to PyTorch's default initialization."""

from __future__ import annotations

from torch import nn


def xavier_uniform(model: nn.Module) -> None:
    """Apply Xavier uniform initialization to every parameter with more than one dimension.

    Pass this function as `initialization`.
    """
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
