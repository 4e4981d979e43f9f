"""Clips gradients before each update."""

from __future__ import annotations

from torch import nn

from trainmaster.arguments import check_number
from trainmaster.errors import SettingError
from trainmaster.stages import Extension


class ClipGradients(Extension):
    """Clips the total norm of the gradients, or each of their elements, before each update.

    Gradients are clipped after they have been accumulated and after a loss scaler has unscaled them.
    If both limits are set, `max_value` is applied first.

    Args:
        max_norm: the maximum norm over all parameters, as in `torch.nn.utils.clip_grad_norm_`.
        max_value: the maximum absolute value of each element, as in `torch.nn.utils.clip_grad_value_`.
    """

    on_every_rank = True

    def __init__(self, max_norm: float | None = None, max_value: float | None = None) -> None:
        if max_norm is None and max_value is None:
            raise SettingError("ClipGradients needs `max_norm`, `max_value`, or both", hint="ClipGradients(max_norm=1.0)")
        for name, value in (("max_norm", max_norm), ("max_value", max_value)):
            if value is not None:
                check_number(name, value, above=0, hint=f"ClipGradients({name}=1.0)")
        self.max_norm = max_norm
        self.max_value = max_value

    def pre_optimizer_step(self, model: nn.Module) -> None:
        if self.max_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), self.max_value)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)
