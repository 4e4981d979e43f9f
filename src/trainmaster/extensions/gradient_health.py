"""Which layers get next to no gradient, and which far too much."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

_OF_MEDIAN = 1e-4
_OF_STRONGEST = 1e-6
_TOO_MUCH = 100.0
_TIMES = 1e3
_SOME = 1.0
"""Below it nothing explodes, whatever others are: in a deep net that vanishes, the last layers are a million times the first."""


def layer_of(parameter: str) -> str:
    """The module that owns a parameter; a parameter of the model itself stands for itself.

    >>> layer_of("blocks.0.linear.weight"), layer_of("scale")
    ('blocks.0.linear', 'scale')
    """
    return parameter.rpartition(".")[0] or parameter


def by_layer(sizes: Mapping[str, float]) -> dict[str, float]:
    """The greatest of each layer's parameters; those that are NaN have no gradient.

    So a single parameter cannot make a layer vanish: the gradient of a bias before a batch norm is 0 by its nature.
    """
    found: dict[str, float] = {}
    for name, size in sizes.items():
        if size == size:
            layer = layer_of(name)
            found[layer] = max(found.get(layer, size), size)
    return found


def exploding_layers(rms: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Layers whose coefficients of the gradient are not finite, above 100, or above 1 and 1e3 times the median layer or their own past.

    `rms` and `before` are by parameter: the mean RMS in the last epoch, and what it was in most of those before, where that is known.

    >>> exploding_layers({"a.w": 0.1, "b.w": 0.2, "c.w": 500.0}, {})
    ['c']
    """
    layers, past = by_layer(rms), by_layer(before)
    finite = [size for size in layers.values() if math.isfinite(size)]
    median = statistics.median(finite) if finite else math.inf
    found = []
    for layer, size in layers.items():
        has_grown = size > _SOME and size > _TIMES * min(median, past.get(layer, median))
        if size > _TOO_MUCH or has_grown:
            found.append(layer)
    return found


def vanishing_layers(rms: Mapping[str, float], exploding: list[str]) -> list[str]:
    """Layers whose gradient is 0, below 1e-4 of the median layer, or below 1e-6 of the strongest that does not explode.

    It is no matter of absolute size: late in a training that goes well all gradients are small.

    >>> vanishing_layers({"a.w": 1e-9, "b.w": 0.1, "c.w": 0.2}, [])
    ['a']
    """
    layers = by_layer(rms)
    sound = [size for layer, size in layers.items() if layer not in exploding]
    least = max(_OF_MEDIAN * statistics.median(sound), _OF_STRONGEST * max(sound)) if sound else 0.0
    return [layer for layer, size in layers.items() if size == 0 or size < least]
