"""Keeps the distribution of many losses, and the highest of them, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_PER_DECADE = 32
_LOW, _HIGH = -6, 12
"""The range of absolute values that the bins distinguish, as exponents: from 10 ** -6 to 10 ** 12."""
ALMOST_ZERO = 10.0**_LOW
_POSITIVE = np.logspace(_LOW, _HIGH, (_HIGH - _LOW) * _PER_DECADE + 1)
EDGES: NDArray[np.float64] = np.concatenate([-_POSITIVE[::-1], _POSITIVE])
"""The edges of the bins. Each bin is 7% wider than its neighbor towards 0; the middle bin contains losses close to 0."""


@dataclass(frozen=True)
class HardSample:
    """A sample with a high loss."""

    index: int
    """The index of the sample in the data, or the index that the function `index` returned for the sample."""
    loss: float


class LossHistogram:
    """Counts losses in bins on their device, without synchronizing, and keeps the highest losses with their sample indices."""

    def __init__(self, num_hardest: int) -> None:
        self._num_hardest = num_hardest
        self.num_samples = 0
        self._counts = torch.zeros(len(EDGES) - 1, dtype=torch.int64)
        self._losses = torch.empty(0, dtype=torch.float64)
        self._indices = torch.empty(0, dtype=torch.int64)
        self._inner_edges: torch.Tensor | None = None

    def add(self, losses: torch.Tensor, indices: torch.Tensor) -> None:
        """Add one loss for each sample of a batch."""
        device = losses.device
        self.num_samples += len(losses)
        losses = losses.detach().to(torch.float32 if device.type == "mps" else torch.float64)
        if self._inner_edges is None or self._inner_edges.device != device:
            # The outer edges are left out, so that values beyond them are counted in the first and the last bin.
            self._inner_edges = torch.from_numpy(EDGES[1:-1]).to(device, losses.dtype)
        self._counts = self._counts.to(device)
        self._counts.index_add_(0, torch.bucketize(losses, self._inner_edges), torch.ones_like(losses, dtype=torch.int64))
        losses = torch.cat([self._losses.to(device, losses.dtype), losses])
        indices = torch.cat([self._indices.to(device), indices.to(device, torch.int64)])
        # NaN is treated as the highest loss. The sort is stable, so that equal losses keep their order on every device.
        order = torch.argsort(losses, descending=True, stable=True)[: self._num_hardest]
        self._losses, self._indices = losses[order], indices[order]

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts.cpu().numpy()

    @property
    def hardest(self) -> list[HardSample]:
        """The samples with the highest losses, in descending order of loss."""
        return [HardSample(int(index), float(loss)) for index, loss in zip(self._indices.tolist(), self._losses.tolist(), strict=True)]

    def quantile(self, share: float) -> float:
        """Return the quantile at `share` (0.5 is the median), accurate to within 7%.

        If the quantile is in the last bin, return the maximum.
        """
        below = self._num_below()
        if share * self.num_samples > below[-2]:  # the last bin also holds NaN
            return self.hardest[0].loss
        value = float(np.interp(share * self.num_samples, below, EDGES))
        return value if abs(value) > ALMOST_ZERO else 0.0

    @property
    def low(self) -> float:
        """A lower bound of all losses, at most 7% below the minimum, or 0 if the minimum is almost 0."""
        edge = EDGES[np.flatnonzero(self.counts)[0]]
        return 0.0 if abs(edge) <= 1.01 * ALMOST_ZERO else float(edge)

    @property
    def high(self) -> float:
        """An upper bound of all losses, at most 7% above the maximum."""
        return float(EDGES[np.flatnonzero(self.counts)[-1] + 1])

    def rebinned(self, edges: NDArray[np.float64]) -> list[int]:
        """Return the approximate counts in the bins between `edges`. The first and the last bin also count losses beyond the edges."""
        below = np.interp(edges, EDGES, self._num_below())
        below[0], below[-1] = 0, self.num_samples
        return [int(count) for count in np.diff(np.round(below))]

    def _num_below(self) -> NDArray[np.float64]:
        """Return the number of losses below each edge."""
        return np.concatenate([[0.0], np.cumsum(self.counts, dtype=np.float64)])

    def state_dict(self) -> dict[str, Any]:
        counts = {"num_samples": self.num_samples, "counts": self._counts}
        return {**counts, "losses": self._losses, "indices": self._indices}  # the caller copies the tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_samples = state["num_samples"]
        self._counts, self._losses, self._indices = state["counts"], state["losses"], state["indices"]
