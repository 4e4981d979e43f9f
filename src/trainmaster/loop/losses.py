"""What a loss must be, and what to say when it is not."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.errors import LossError
from trainmaster.loop.settings import shown


def checked_loss(loss: Any) -> Any:
    """The loss of an evaluation batch, refused where it is not a single number."""
    is_number = loss.numel() == 1 if isinstance(loss, torch.Tensor) else isinstance(loss, (int, float))
    if not is_number:
        raise _shape_error(loss)
    return loss


def backward_error(loss: Any, error: Exception) -> LossError | None:
    """Why `loss.backward()` failed, where the loss is to blame."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return _shape_error(loss)
    if not loss.requires_grad:
        return LossError(
            "the loss does not depend on any parameter that is trained",
            why=str(error),
            hint="look for .detach(), .item(), torch.no_grad() or an argmax between the model and the loss",
        )
    return None


def _shape_error(loss: Any) -> LossError:
    if isinstance(loss, torch.Tensor):
        return LossError(
            f"the loss has the shape {tuple(loss.shape)}, but must be a single number",
            hint="take its mean or its sum: loss.mean(), or reduction='mean'",
        )
    return LossError(f"the loss is {shown(loss)}, not a tensor", hint="return the tensor that the loss function computes, without .item()")
