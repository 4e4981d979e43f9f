"""The losses of many samples in bounded memory: how they are distributed, and the hardest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_PER_DECADE = 32
_LOW, _HIGH = -6, 12
"""Losses are told apart from 10 ** -6 to 10 ** 12, on either side of 0."""
ALMOST_ZERO = 10.0**_LOW
_POSITIVE = np.logspace(_LOW, _HIGH, (_HIGH - _LOW) * _PER_DECADE + 1)
EDGES: NDArray[np.float64] = np.concatenate([-_POSITIVE[::-1], _POSITIVE])
"""Of the intervals; the one in the middle is for all that is almost 0. Each is 7 % wider than the next one towards 0."""


@dataclass(frozen=True)
class HardSample:
    """A sample with a high loss."""

    index: int
    """Its place in the data, from 0 on, or what `index` gave for it."""
    loss: float


class LossHistogram:
    """Counts losses on their device, so that no step waits, and keeps the highest with their indices."""

    def __init__(self, num_hardest: int) -> None:
        self._num_hardest = num_hardest
        self._counts: torch.Tensor | None = None
        self._losses = torch.empty(0, dtype=torch.float64)
        self._indices = torch.empty(0, dtype=torch.int64)
        self._inner: torch.Tensor | None = None

    def add(self, losses: torch.Tensor, indices: torch.Tensor) -> None:
        """Take the losses of some samples, one each."""
        device = losses.device
        losses = losses.detach().to(torch.float32 if device.type == "mps" else torch.float64)
        if self._counts is None or self._inner is None or self._inner.device != device:
            self._counts = (
                torch.zeros(len(EDGES) - 1, dtype=torch.int64, device=device) if self._counts is None else self._counts.to(device)
            )
            self._inner = torch.from_numpy(EDGES[1:-1]).to(device, losses.dtype)  # what is beyond the outer ones counts as within
        self._counts.index_add_(0, torch.bucketize(losses, self._inner), torch.ones_like(losses, dtype=torch.int64))
        losses = torch.cat([self._losses.to(device, losses.dtype), losses])
        indices = torch.cat([self._indices.to(device), indices.to(device, torch.int64)])
        # A loss that is no number is the hardest of all. Of equal ones the first come first, on every device.
        order = torch.argsort(losses, descending=True, stable=True)[: self._num_hardest]
        self._losses, self._indices = losses[order], indices[order]

    def __len__(self) -> int:
        """How many losses there were."""
        return 0 if self._counts is None else int(self._counts.sum())

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.zeros(len(EDGES) - 1, np.int64) if self._counts is None else self._counts.cpu().numpy()

    @property
    def hardest(self) -> list[HardSample]:
        """The highest losses, the highest first."""
        return [HardSample(int(index), float(loss)) for index, loss in zip(self._indices.tolist(), self._losses.tolist(), strict=True)]

    def quantile(self, share: float) -> float:
        """The loss that this share of the samples is not above, to within 7 %; beyond the last interval, the highest there is."""
        below = self._below()
        if share * len(self) > below[-2]:  # NaN is there, too
            return self.hardest[0].loss
        found = float(np.interp(share * len(self), below, EDGES))
        return found if abs(found) > ALMOST_ZERO else 0.0

    @property
    def low(self) -> float:
        """Below the least loss, by 7 % at most; 0 for one that is almost 0."""
        edge = EDGES[np.flatnonzero(self.counts)[0]]
        return 0.0 if abs(edge) <= 1.01 * ALMOST_ZERO else float(edge)

    @property
    def high(self) -> float:
        """Above the greatest loss, by 7 % at most."""
        return float(EDGES[np.flatnonzero(self.counts)[-1] + 1])

    def between(self, edges: NDArray[np.float64]) -> list[int]:
        """How many losses lie in each of other intervals, about; what lies outside is in the outer ones."""
        below = np.interp(edges, EDGES, self._below())
        below[0], below[-1] = 0, len(self)
        return [int(count) for count in np.diff(np.round(below))]

    def _below(self) -> NDArray[np.float64]:
        """How many losses lie below each edge."""
        return np.concatenate([[0.0], np.cumsum(self.counts, dtype=np.float64)])

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self._counts, "losses": self._losses, "indices": self._indices}  # copied by who asks

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts, self._losses, self._indices = state["counts"], state["losses"], state["indices"]
