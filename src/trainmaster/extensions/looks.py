"""Rows of numbers of some steps, kept on their device until a whole epoch of them, or so, is fetched at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

MAX_LOOKS = 256
"""How many rows wait at most: an epoch may have any number of steps, and memory is not to grow with it."""


class Looks:
    """Tensors of one shape in the order they came, each with the number of its update."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._rows: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, row: torch.Tensor) -> bool:
        """Take a row, on whatever device; True where it is time to `take` them."""
        self._steps.append(step)
        self._rows.append(row)
        return len(self._steps) >= MAX_LOOKS

    def read(self) -> list[tuple[int, Any]]:
        """All rows as nested lists of numbers, with their steps."""
        return list(zip(self._steps, _stacked(self._rows).tolist(), strict=True)) if self._rows else []

    def take(self) -> list[tuple[int, Any]]:
        """As `read`; none are left."""
        found = self.read()
        self.clear()
        return found

    def clear(self) -> None:
        self._steps, self._rows = [], []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self._steps), "rows": _stacked(self._rows) if self._rows else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = list(state["steps"])
        self._rows = [] if state["rows"] is None else list(state["rows"].unbind())


def _stacked(rows: list[torch.Tensor]) -> torch.Tensor:
    device = rows[-1].device
    return torch.stack([row if row.device == device else row.to(device) for row in rows])  # a restored row may lie elsewhere
