"""Collects scalars and later reads them from their device all at once, so that no step waits for a GPU."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.errors import LossError

MAX_WAITING = 256
"""The maximum number of scalars that can wait to be read, so that memory does not grow with the length of an epoch."""


class Pending(list[tuple[Any, Any]]):
    """A list of (label, scalar) pairs that have not been read yet. `drain` reads all of them from their device at once."""

    def add(self, label: Any, value: Any) -> bool:
        """Add a scalar tensor or a number. Return True if it is time to call `drain`."""
        self.append((label, value.detach() if isinstance(value, torch.Tensor) else value))
        return len(self) >= MAX_WAITING

    def drain(self) -> list[tuple[Any, float]]:
        """Return all waiting scalars as (label, number) pairs, and empty the queue."""
        waiting = self.copy()
        self.clear()
        tensors = [value for _, value in waiting if isinstance(value, torch.Tensor)]
        if len(tensors) == len(waiting) > 1 and len({(each.device, each.dtype, each.shape) for each in tensors}) == 1:
            values = torch.stack(tensors).reshape(-1).tolist()
            if len(values) != len(waiting):
                raise LossError(
                    f"expected a number, not a tensor of shape {tuple(tensors[0].shape)}",
                    hint="return a single number as the loss: loss.mean()",
                )
            return [(label, float(value)) for (label, _), value in zip(waiting, values, strict=True)]
        return [(label, float(value)) for label, value in waiting]
