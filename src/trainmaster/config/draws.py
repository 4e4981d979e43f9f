"""Draws random configs, with values from lists, distributions or functions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Protocol, runtime_checkable

from trainmaster.config.config import Config
from trainmaster.config.grid import Grid
from trainmaster.config.paths import leaves
from trainmaster.config.to_plain import value_to_plain
from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem


@runtime_checkable
class Distribution(Protocol):
    """A distribution is any object with a `draw` method."""

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
    """A gamma distribution that starts at `low` and extends upward, or starts at `high` and extends downward."""

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
    """A beta distribution between `low` and `high`. `Beta(1, 1, low, high)` is uniform."""

    a: float
    b: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _check(self, a=self.a > 0, b=self.b > 0, high=self.high > self.low)

    def draw(self, rng: Random) -> float:
        return self.low + (self.high - self.low) * rng.betavariate(self.a, self.b)


def draw_configs(choices: Mapping[str, Any] | str | os.PathLike[str], num_configs: int, seed: int = 0) -> Iterator[Config]:
    """Draw `num_configs` random configs for `Manager.batch`. The same `seed` gives the same configs.

    Each value in `choices` is a list of alternatives, a distribution, a function that takes a `random.Random` and returns
    a value, or a fixed value.

    >>> [config.arch for config in draw_configs({"lr": Beta(1, 1, 0.01, 0.1), "arch": ["ResNet18", "ResNet50"]}, 4)]
    ['ResNet50', 'ResNet18', 'ResNet18', 'ResNet50']
    """
    sources = _sources(choices)
    problems = [Problem(key, "has no values to choose from", "[]") for key, source in sources.items() if _is_list(source) and not source]
    if problems:
        raise ConfigError.of("the choices", problems)
    return (Config({key: _drawn(key, source, number, seed) for key, source in sources.items()}) for number in range(num_configs))


def choices2configs(
    choices: Mapping[str, Any] | str | os.PathLike[str],
    num_configs: int | None = None,
    default: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Iterator[Config]:
    """Create configs for `Manager.batch` from `choices`. Missing keys are filled in from `default`.

    If all values in `choices` are lists or fixed values, the configs are the combinations of a `Grid`, or the first
    `num_configs` of them. If a value is a distribution or a function, `draw_configs` draws `num_configs` configs.

    >>> [config.asdict() for config in choices2configs({"lr": [0.1, 0.01]}, default={"width": 8})]
    [{'lr': 0.01, 'width': 8}, {'lr': 0.1, 'width': 8}]
    """
    is_drawn = any(isinstance(source, Distribution) or callable(source) for source in _sources(choices).values())
    if num_configs is None and is_drawn:
        raise ConfigError.of("the arguments", [Problem("num_configs", "expected a number, because random configs can be drawn forever")])
    if num_configs is not None and (isinstance(num_configs, bool) or not isinstance(num_configs, int) or num_configs < 0):
        raise ConfigError.of("the arguments", [Problem("num_configs", "expected a whole number, 0 or more", short_repr(num_configs))])
    found = draw_configs(choices, num_configs or 0, seed) if is_drawn else islice(Grid(choices, seed), num_configs)
    filling = Config(default or {}) if default is None or isinstance(default, Mapping) else Config.load(default)
    return (_filled(config, filling) for config in found)


def _filled(config: Config, default: Config) -> Config:
    config.fill(default)
    return config


def _sources(choices: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return the list, distribution, function or fixed value of each dotted key. An array is treated as a list."""
    config = Config(choices) if isinstance(choices, Mapping) else Config.load(choices)
    return {key: leaf.tolist() if hasattr(leaf, "tolist") else leaf for key, leaf in leaves(config, into_lists=False)}


def _is_list(source: Any) -> bool:
    return isinstance(source, Sequence) and not isinstance(source, str | bytes)


def _drawn(key: str, source: Any, number: int, seed: int) -> Any:
    rng = Random(f"{seed}/{number}/{key}")  # one generator per value, so that adding a key does not change the other values
    if isinstance(source, Distribution):
        value = source.draw(rng)
    elif _is_list(source):
        value = rng.choice(source)
    else:
        value = source(rng) if callable(source) else source
    problems: list[Problem] = []
    value_to_plain(value, (*key.split("."),), problems, allows_typed=True)
    if problems:
        raise ConfigError.of("a drawn config", problems)
    return value


def _check(distribution: Any, **is_right: bool) -> None:
    wrong = [name for name, right in is_right.items() if not right]
    if wrong:
        raise ConfigError.of("a distribution", [Problem(wrong[0], "is not valid for this distribution", repr(distribution))])
