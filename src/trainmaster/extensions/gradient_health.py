"""Finds layers with vanishing or exploding gradients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

_VANISHING_OF_MEDIAN = 1e-4
_VANISHING_OF_MAX = 1e-6
_EXPLODING = 100.0
_EXPLODING_FACTOR = 1e3
_MIN_EXPLODING = 1.0
"""Gradients with a smaller RMS are never reported as exploding. In a model with vanishing gradients, the normal gradients
of the last layers may be a million times larger than those of the first layers."""


def layer_of(parameter: str) -> str:
    """Return the module that owns a parameter, or the parameter itself if the model owns it directly.

    >>> layer_of("blocks.0.linear.weight"), layer_of("scale")
    ('blocks.0.linear', 'scale')
    """
    return parameter.rpartition(".")[0] or parameter


def by_layer(rms: Mapping[str, float]) -> dict[str, float]:
    """Return the RMS of each layer: the largest RMS among the gradients of its parameters.

    Parameters without a gradient, whose value in `rms` is NaN, are left out. The maximum is used because a single gradient
    of 0 is not a problem. For example, the gradient of a bias before a batch norm is always 0.
    """
    layers: dict[str, float] = {}
    for name, value in rms.items():
        if not math.isnan(value):
            layer = layer_of(name)
            layers[layer] = max(layers.get(layer, value), value)
    return layers


def exploding_layers(rms: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Find layers with exploding gradients.

    A gradient explodes if its RMS is not finite or is above 100. It also explodes if its RMS is above 1 and is more
    than 1000 times as large as one of two medians: the median over all layers, or the median over earlier epochs of the
    same layer.

    `rms` maps each parameter to its mean RMS in the last epoch. `before` maps parameters to their medians over earlier
    epochs, if these are known.

    >>> exploding_layers({"a.w": 0.1, "b.w": 0.2, "c.w": 500.0}, {})
    ['c']
    """
    layers, past = by_layer(rms), by_layer(before)
    finite = [value for value in layers.values() if math.isfinite(value)]
    median = statistics.median(finite) if finite else math.inf
    return [
        layer
        for layer, value in layers.items()
        if value > _EXPLODING or (value > _MIN_EXPLODING and value > _EXPLODING_FACTOR * min(median, past.get(layer, median)))
    ]


def vanishing_layers(rms: Mapping[str, float], exploding: list[str]) -> list[str]:
    """Find layers with vanishing gradients.

    A gradient vanishes if its RMS is 0, is below 1e-4 times the median over the layers whose gradients do not explode,
    or is below 1e-6 times their maximum. The absolute size does not matter, because late in training all gradients are
    small.

    >>> vanishing_layers({"a.w": 1e-9, "b.w": 0.1, "c.w": 0.2}, [])
    ['a']
    """
    layers = by_layer(rms)
    others = [value for layer, value in layers.items() if layer not in exploding]
    threshold = max(_VANISHING_OF_MEDIAN * statistics.median(others), _VANISHING_OF_MAX * max(others)) if others else 0.0
    return [layer for layer, value in layers.items() if value == 0 or value < threshold]
