"""Draws: configs whose values are drawn at random, from lists, distributions or functions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, runtime_checkable

from trainmaster.config.free import Config
from trainmaster.config.paths import leaves
from trainmaster.config.plain import identity_of, plain_value
from trainmaster.errors import ConfigError, Problem


@runtime_checkable
class Distribution(Protocol):
    """Anything that a value can be drawn from."""

    def draw(self, rng: Random) -> Any: ...


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check(self, std=self.std > 0)

    def draw(self, rng: Random) -> float:
        return rng.gauss(self.mean, self.std)


@dataclass(frozen=True)
class Gamma:
    """A gamma distribution that starts at `low` and goes up, or at `high` and goes down."""

    shape: float
    scale: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        _check(self, shape=self.shape > 0, scale=self.scale > 0, high=self.low is None or self.high is None)

    def draw(self, rng: Random) -> float:
        distance = rng.gammavariate(self.shape, self.scale)
        return self.high - distance if self.high is not None else (self.low or 0.0) + distance


@dataclass(frozen=True)
class Beta:
    """A beta distribution between `low` and `high`; `Beta(1, 1, low, high)` is uniform."""

    a: float
    b: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _check(self, a=self.a > 0, b=self.b > 0, high=self.high > self.low)

    def draw(self, rng: Random) -> float:
        return self.low + (self.high - self.low) * rng.betavariate(self.a, self.b)


def draw_configs(choices: Mapping[str, Any] | str | os.PathLike[str], num_configs: int, seed: int = 0) -> Iterator[Config]:
    """`num_configs` configs, the same ones for the same `seed`, for `Manager.batch`.

    A list gives alternatives, a distribution or a function of a `random.Random` draws a value; any other value is fixed.

    >>> [config.arch for config in draw_configs({"lr": Beta(1, 1, 0.01, 0.1), "arch": ["ResNet18", "ResNet50"]}, 4)]
    ['ResNet50', 'ResNet18', 'ResNet18', 'ResNet50']
    """
    config = Config(choices) if isinstance(choices, Mapping) else Config.load(choices)
    sources = dict(leaves(config, into_lists=False))
    problems = [Problem(key, "has no values to choose from", "[]") for key, source in sources.items() if source in ([], ())]
    if problems:
        raise ConfigError.of("the choices", problems)
    return (Config({key: _drawn(key, source, number, seed) for key, source in sources.items()}) for number in range(num_configs))


def _drawn(key: str, source: Any, number: int, seed: int) -> Any:
    rng = Random(f"{seed}/{number}/{key}")  # each value by itself: another key more changes none of the others
    if isinstance(source, Distribution):
        value = source.draw(rng)
    elif isinstance(source, list | tuple):
        value = rng.choice(source)
    else:
        value = source(rng) if callable(source) else source
    problems: list[Problem] = []
    plain_value(value, (*key.split("."),), problems, identity_of)
    if problems:
        raise ConfigError.of("a drawn config", problems)
    return value


def _check(distribution: Any, **is_right: bool) -> None:
    wrong = [name for name, right in is_right.items() if not right]
    if wrong:
        raise ConfigError.of("a distribution", [Problem(wrong[0], "does not make one", repr(distribution))])
