"""Numbers that wait on their device, so that no step waits for them."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.errors import LossError

MAX_WAITING = 256
"""How many may wait: they are small, and yet no memory is to grow with an epoch."""


class Pending:
    """Numbers in the order they came, each with where it belongs; taken from their device all at once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, Any]] = []

    def add(self, where: Any, value: Any) -> bool:
        """Take a scalar, a tensor or a number; True where it is time to `drain`."""
        self._waiting.append((where, value.detach() if isinstance(value, torch.Tensor) else value))
        return len(self._waiting) >= MAX_WAITING

    def drain(self) -> list[tuple[Any, float]]:
        """All that waited, as plain numbers."""
        waiting, self._waiting = self._waiting, []
        tensors = [value for _, value in waiting if isinstance(value, torch.Tensor)]
        if len(tensors) == len(waiting) > 1 and len({(each.device, each.dtype, each.shape) for each in tensors}) == 1:
            values = torch.stack(tensors).reshape(-1).tolist()
            if len(values) != len(waiting):
                raise LossError(
                    f"a number was wanted, and not a tensor of shape {tuple(tensors[0].shape)}",
                    hint="let the loss be a single number: loss.mean()",
                )
            return [(where, float(value)) for (where, _), value in zip(waiting, values, strict=True)]
        return [(where, float(value)) for where, value in waiting]

    def clear(self) -> None:
        self._waiting.clear()
