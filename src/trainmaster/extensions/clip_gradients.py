"""A ceiling for gradients."""

from __future__ import annotations

import math

from torch import nn

from trainmaster.errors import SettingError
from trainmaster.stages import Extension


class ClipGradients(Extension):
    """Holds the norm of all gradients, or each of their values, at or below a ceiling, before each update.

    What is clipped are the gradients that the update is made of: added up over the batches of a group, and without the scale of a loss
    scaler, because `pre_optimizer_step` comes after both. With both ceilings, values are clipped first.

    Args:
        max_norm: the ceiling of the norm over all parameters, as in `torch.nn.utils.clip_grad_norm_`.
        max_value: the ceiling of the size of each value, as in `torch.nn.utils.clip_grad_value_`.
    """

    def __init__(self, max_norm: float | None = None, max_value: float | None = None) -> None:
        if max_norm is None and max_value is None:
            raise SettingError("ClipGradients needs a ceiling: `max_norm`, `max_value`, or both", hint="ClipGradients(max_norm=1.0)")
        for name, value in (("max_norm", max_norm), ("max_value", max_value)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < math.inf):
                raise SettingError(f"`{name}` is a finite number above 0, not {value!r}", hint=f"ClipGradients({name}=1.0)")
        self.max_norm = max_norm
        self.max_value = max_value

    def pre_optimizer_step(self, model: nn.Module) -> None:
        if self.max_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), self.max_value)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)
