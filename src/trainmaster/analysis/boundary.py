"""The boundary of a sequential t test, which analyzes the data after every pair of runs.

The boundary defines how far the mean difference of n pairs must be from the margin to reach a verdict. If an ordinary
test is repeated after every pair, a false finding becomes more and more likely. Here, all looks (interim analyses)
share one error rate: after n of N pairs, the probability of a wrong verdict so far is `alpha * (n / N) ** 2`, which
reaches `alpha` at the end. The boundary is computed without random numbers. Random numbers are used only to estimate
the power, which does not affect the verdicts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainmaster.analysis.statistics import pairs_needed, smallest_enough

FIRST_LOOK = 5
"""The number of pairs after which the data is analyzed for the first time.

With fewer pairs, metrics with discrete values would give too many wrong verdicts.
"""
_OPEN_END = 10.0
MAX_PAIRS = 200
_MIN_CELLS, _CELLS_PER_PAIR, _NUM_NODES = 300, 10, 80
"""The resolution of the grid on which the boundary is computed. With fewer cells, the boundary of a long study would be too high."""
_NUM_STUDIES, _MAX_SIMULATED_PAIRS = 10_000, 2_000_000


@dataclass(frozen=True)
class Design:
    """The settings of a sequential test: the rate of wrong verdicts, the maximum number of pairs, and the threshold for stopping early."""

    alpha: float
    budget: int | None
    """The maximum number of pairs, or None for a study that can be extended at any time.

    Without a maximum, a study needs about 1.3 times as many pairs.
    """
    hopeless: float = 0.0
    """Once half of the budget is used, the study stops if the probability of a verdict falls below this value."""

    def spent_by(self, n: int) -> float:
        """Return the probability of a wrong verdict in the first `n` pairs."""
        if self.budget is None:
            return self.alpha * (n - FIRST_LOOK + 1) / (n - FIRST_LOOK + 1 + _OPEN_END)
        return self.alpha * (n / self.budget) ** 2

    def criticals(self, last: int) -> NDArray[np.float64]:
        """Return the critical |t| after 0 to `last` pairs. Element n is infinite if the data is not analyzed after n pairs."""
        return _criticals(self.alpha, self.budget, last)[: last + 1]

    def is_hopeless(self, n: int, t: float, last_critical: float) -> bool:
        """Return whether, after `n` pairs, the study is unlikely to reach a verdict if the remaining pairs resemble those so far."""
        if self.budget is None or not self.hopeless or n >= self.budget or 2 * n < self.budget:
            return False
        share = n / self.budget
        z = (abs(t) / math.sqrt(share) - last_critical) / math.sqrt(1 - share)
        return (1 + math.erf(z / math.sqrt(2))) / 2 < self.hopeless


@functools.lru_cache(maxsize=64)
def _criticals(alpha: float, budget: int | None, last: int) -> NDArray[np.float64]:
    longest = MAX_PAIRS if budget is None else budget
    return boundary(Design(alpha, budget).spent_by, budget or last, max(_MIN_CELLS, _CELLS_PER_PAIR * longest))


def boundary(spent_by: Callable[[int], float], last: int, num_cells: int) -> NDArray[np.float64]:
    """Return the critical |t| after each number of pairs, such that the probability of a wrong verdict within n pairs is `spent_by(n)`.

    Let S be the sum and Q the sum of squares of n differences from the margin, and sin(theta) = S / sqrt(n * Q). For
    normal differences, theta is a Markov chain that does not depend on their scale, and t = sqrt(n - 1) * tan(theta).
    A grid holds the distribution of |theta| among the studies that have not crossed the boundary. Each look cuts off
    the tail of this distribution, and each pair updates the rest.
    """
    criticals = np.full(last + 1, np.inf)
    edges = np.linspace(0, np.pi / 2, num_cells + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    mass, spent = np.full(num_cells, 1 / num_cells), 0.0
    for n in range(2, last + 1):
        if n >= min(FIRST_LOOK, last) and (wanted := spent_by(n) - spent) > 1e-12:
            tail = np.cumsum(mass[::-1])
            cut = int(np.searchsorted(tail, wanted))
            part = (wanted - (tail[cut - 1] if cut else 0)) / mass[num_cells - 1 - cut]
            upper, lower = edges[num_cells - cut], edges[num_cells - 1 - cut]
            criticals[n] = np.sqrt(n - 1) * np.tan(upper - part * (upper - lower))
            mass[num_cells - cut :] = 0
            mass[num_cells - 1 - cut] *= 1 - part
            spent += wanted
        phi = nodes * min(np.pi / 2, 9 / np.sqrt(n))  # beyond this angle, the density is zero
        density = weights * np.cos(phi) ** (n - 1)
        moved = np.sqrt(n / (n + 1)) * np.sin(middles)[:, None] * np.cos(phi) + np.sin(phi) / np.sqrt(n + 1)
        at = np.abs(np.arcsin(np.clip(moved, -1, 1))) / (np.pi / 2) * num_cells - 0.5
        low = np.floor(at).astype(int)
        share = mass[:, None] * density / density.sum()
        mass = np.zeros(num_cells)
        for step, weight in ((0, 1 - at + low), (1, at - low)):
            cells = np.clip(low + step, 0, num_cells - 1).ravel()
            mass += np.bincount(cells, (share * weight).ravel(), num_cells)
    return criticals


# ---- power of a design


def power_of(design: Design, distance: float, last: int | None = None) -> float:
    """Return the probability of the right verdict if the true mean is `distance` from the margin.

    The distance is in standard deviations of the pairs' differences.
    """
    return _outcomes(design, distance, last)[0]


def mean_pairs(design: Design, distance: float) -> float:
    """Return the mean number of pairs that a study uses if the true mean is `distance` from the margin."""
    return _outcomes(design, distance, None)[1]


@functools.lru_cache(maxsize=64)
def smallest_distance(design: Design, power: float, last: int | None = None) -> float:
    """Return the smallest effect (distance of the true mean from the margin) that a study detects with probability `power`."""
    return smallest_enough(lambda distance: power_of(design, distance, last) < power, 12)


def budget_for(distance: float, power: float, alpha: float, hopeless: float) -> int | None:
    """Return the smallest number of pairs with which a study detects an effect with probability `power`, or None if 200 are too few."""

    def reaches(budget: int) -> bool:
        return power_of(Design(alpha, budget, hopeless), distance) >= power

    budget = max(FIRST_LOOK, min(pairs_needed(distance, level=1 - alpha, power=power), MAX_PAIRS))
    while not reaches(budget):
        if budget >= MAX_PAIRS:
            return None
        budget = min(budget + max(1, budget // 25), MAX_PAIRS)
    while budget > FIRST_LOOK and reaches(budget - 1):
        budget -= 1
    return budget


@functools.lru_cache(maxsize=64)
def _outcomes(design: Design, distance: float, last: int | None) -> tuple[float, float]:
    """Return the share of simulated studies with the right verdict, and the mean number of pairs used."""
    num_pairs = last or design.budget
    assert num_pairs is not None
    differences = _noise(num_pairs) + distance
    sizes = np.arange(1, num_pairs + 1)
    sums, squares = np.cumsum(differences, axis=1), np.cumsum(differences**2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = sums / np.sqrt(sizes) / np.sqrt((squares - sums**2 / sizes) / (sizes - 1))
    criticals = design.criticals(num_pairs)
    crossed = np.abs(t) >= criticals[1:]
    stopped = crossed.copy()
    if design.hopeless and design.budget is not None:
        looks = np.arange((design.budget + 1) // 2, num_pairs)
        share = looks / design.budget
        z = (np.abs(t[:, looks - 1]) / np.sqrt(share) - criticals[-1]) / np.sqrt(1 - share)
        stopped[:, looks - 1] |= z < NormalDist().inv_cdf(design.hopeless)
    stopped[:, -1] = True
    at = stopped.argmax(axis=1)
    rows = np.arange(len(t))
    right = crossed[rows, at] & (t[rows, at] > 0)
    return float(right.mean()), float(at.mean()) + 1


@functools.lru_cache(maxsize=2)
def _noise(num_pairs: int) -> NDArray[np.float64]:
    num_studies = min(_NUM_STUDIES, _MAX_SIMULATED_PAIRS // num_pairs)
    return np.random.default_rng(0).standard_normal((num_pairs, num_studies)).T.copy()
