"""Checks loss values, and raises errors that explain what is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from trainmaster.errors import LossError, shown


def checked_loss(loss: Any) -> Any:
    """Return the loss of an evaluation batch. Raise an error unless it is a single number."""
    is_number = loss.numel() == 1 if isinstance(loss, torch.Tensor) else isinstance(loss, (int, float))
    if not is_number:
        raise _shape_error(loss)
    return loss


def is_torch_loss(loss: Any) -> bool:
    """Return whether a loss is one of PyTorch's loss functions, such as `nn.BCELoss()` or `nn.functional.mse_loss`.

    Such a loss takes (prediction, target).
    """
    return isinstance(loss, _Loss) or getattr(loss, "__module__", None) == "torch.nn.functional"


def backward_error(loss: Any, error: Exception, model: nn.Module) -> LossError | None:
    """Return the error that explains why `loss.backward()` failed, or None if the loss is not the cause."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return _shape_error(loss)
    if not loss.requires_grad:
        why, hint = str(error), "look for .detach(), .item(), torch.no_grad() or an argmax between the model and the loss"
        if not any(each.requires_grad for each in model.parameters()):
            why = f"no parameter of the model {type(model).__name__} requires a gradient"
            hint = "set requires_grad to True for the parameters to train: model.requires_grad_(True)"
        return LossError("the loss does not depend on any parameter that is trained", why=why, hint=hint)
    return None


def _shape_error(loss: Any) -> LossError:
    if isinstance(loss, torch.Tensor):
        return LossError(
            f"the loss has the shape {tuple(loss.shape)}, but must be a single number",
            hint="take its mean or its sum: loss.mean(), or reduction='mean'",
        )
    return LossError(f"the loss is {shown(loss)}, not a tensor", hint="return the tensor that the loss function computes, without .item()")
