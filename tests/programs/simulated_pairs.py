"""Simulates pairs of runs for the real `decide`, to measure how often its verdicts are right or wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.analysis import Hypothesis
from trainmaster.analysis.arms import RunValue
from trainmaster.analysis.verdict import HypothesisPlan, Pair, Verdict, decide

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""A function that draws the values of both arms for some pairs. Neither arm is better."""


def normal(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    shared = random.normal(0.9, 0.02, n)
    return shared + random.normal(0, 0.005, n), shared + random.normal(0, 0.005, n)


def t3(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    return 0.9 + 0.005 * random.standard_t(3, n), 0.9 + 0 * random.standard_t(3, n)


def laplace(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    return 0.9 + random.laplace(0, 0.005, n), np.full(n, 0.9)


def accuracies(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return accuracies on 500 examples."""
    share = np.clip(random.normal(0.9, 0.01, n), 0, 1)
    return random.binomial(500, share) / 500, random.binomial(500, share) / 500


def coarse(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return a metric rounded to steps of 0.01, whose differences have a standard deviation of about 0.7 steps."""
    return np.round(random.normal(90, 0.4, n)) / 100, np.round(random.normal(90, 0.4, n)) / 100


def diverging(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return values for arms in which 5% of the runs diverge and have no value."""
    a, b = normal(random, n)
    a[random.random(n) < 0.05], b[random.random(n) < 0.05] = np.nan, np.nan
    return a, b


def skewed(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return values whose differences have mean 0 and skewness 1."""
    return 0.9 + 0.0025 * (random.gamma(4, 1, n) - 4), np.full(n, 0.9)


def exponential(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return values whose differences have mean 0 and skewness 2."""
    return 0.9 + 0.005 * (random.exponential(1, n) - 1), np.full(n, 0.9)


@functools.lru_cache
def plan_for(budget: int, hopeless: float = 0.0, failed: str = "wait") -> HypothesisPlan:
    return Hypothesis("a=1", better_than="a=2", on="accuracy", budget=budget, hopeless=hopeless, failed=failed).plan()  # type: ignore[arg-type]


def judged(plan: HypothesisPlan, a: Array, b: Array) -> Verdict:
    def run(value: Any) -> RunValue:
        return RunValue("0" * 8, float(value) if np.isfinite(value) else None)

    return decide(plan, [Pair(seed, run(one), run(two)) for seed, (one, two) in enumerate(zip(a, b, strict=True))])


def count(plan: HypothesisPlan, draw: Draw, num: int, seed: int, gain: float = 0.0) -> dict[str, int]:
    """Count how many of `num` studies end in each state if the claim is better by `gain`."""
    random, found = np.random.default_rng(seed), {"supported": 0, "refuted": 0, "inconclusive": 0, "pending": 0}
    for _ in range(num):
        a, b = draw(random, len(plan.seeds))
        found[judged(plan, a + gain, b).state] += 1
    return found
