"""Logs and draws the norm or the root mean square (RMS) of every parameter's gradient during training."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import nn

from trainmaster.arguments import check_int
from trainmaster.extensions.epochs import epochs_done, is_epoch_complete, updates_done
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.extensions.metric_history import MetricHistory, heat_map, lines, shown_names
from trainmaster.extensions.norm_sums import NormSums
from trainmaster.figures.panels import Bars, Panel
from trainmaster.loop.sharding import refuse_shards
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures

_ADVICE = {
    "vanishing": "try ReLU or GELU instead of sigmoid or tanh, normalization, residual connections, or larger initial weights",
    "exploding": "try gradient clipping, a lower learning rate, normalization, or smaller initial weights",
}
_MIN_COLUMNS = 3
"""A layer is compared with its earlier values only if there are at least this many of them."""
_MAX_WARNED = 8
_VANISHING_OF_MEDIAN = 1e-4
_VANISHING_OF_MAX = 1e-6
_EXPLODING = 100.0
_EXPLODING_FACTOR = 1e3
_MIN_EXPLODING = 1.0
"""Gradients with a smaller RMS are never reported as exploding. In a model with vanishing gradients, the normal gradients
of the last layers may be a million times larger than those of the first layers."""


class GradientObserver(FigureObserver):
    """The base class of `GradNormVis` and `GradCoeffRMSVis`.

    Gradients are measured after `backward` and before clipping. With gradient accumulation, they include the gradients
    of earlier batches. With a loss scaler, they may still be scaled. Norms are added up on the device and fetched once
    per epoch, or once per `every` updates.
    """

    tag = ""
    label = ""

    def __init__(self, every: int | None = None, path: str | PathLike[str] | None = None) -> None:
        """`every` is the number of updates per logged value and per column of the figure. With None, there is one value per epoch."""
        if every is not None:
            check_int("every", every, min=1, hint=f"{type(self).__name__}(every=500), or every=None for one value per epoch")
            self.post_optimizer_step = self._count_update  # defined only if it is needed, because a stage without hooks is nearly free
        super().__init__(self.tag, path)
        self.every = every
        self._sums = NormSums()
        self._history = MetricHistory()
        self._last: dict[str, float] = {}
        self._unhealthy: dict[str, list[str]] = {"vanishing": [], "exploding": []}
        self._num_updates = 0
        self._has_warned = False

    def scale(self, size: int) -> float:
        """Return the factor by which the norm of a gradient with `size` elements is multiplied to get the logged value."""
        raise NotImplementedError

    # Hooks.

    def pre_train(self, loop: Any) -> None:
        refuse_shards(loop.model, type(self).__name__)
        super().pre_train(loop)

    def pre_train_step_epoch(self, model: nn.Module) -> None:
        self._sums.watch(model)
        if self.every is None:
            self._sums.clear()  # an epoch that ended early may have left sums behind

    def post_backward(self) -> None:
        self._sums.add()

    def _count_update(self, fixtures: Fixtures) -> None:
        self._num_updates += 1
        if self.every is not None and self._num_updates % self.every == 0:
            self._log(updates_done(fixtures), fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if self.every is None and is_epoch_complete(loop):
            self._log(epochs_done(loop), writer)

    # Logging.

    def _log(self, x: int, writer: Writer | None) -> None:
        means = self._sums.take()
        self._last = {name: mean.norm * self.scale(self._sums.sizes[name]) for name, mean in means.items()}
        self._find_unhealthy([name for name, mean in means.items() if mean.num_nonfinite])
        self._history.add(x, self._last)
        for name, value in self._last.items():
            if not math.isnan(value):
                record(writer, f"{self.tag}/{name}", value, x, self._unit)
        self._warn(x)
        self._figure_writer.draw_if_due()

    def _find_unhealthy(self, nonfinite: list[str]) -> None:
        """Find the layers whose gradients vanish or explode. `nonfinite` lists parameters whose gradient was not finite in some batch."""
        rms = self._rms(self._last) | dict.fromkeys(nonfinite, math.inf)
        exploding = exploding_layers(rms, self._rms(self._history.medians(_MIN_COLUMNS)))
        self._unhealthy = {"vanishing": vanishing_layers(rms, exploding), "exploding": exploding}

    def _rms(self, values: Mapping[str, float]) -> dict[str, float]:
        sizes = {name: max(1, self._sums.sizes.get(name, 1)) for name in values}
        return {name: value / (self.scale(sizes[name]) * math.sqrt(sizes[name])) for name, value in values.items()}

    def _warn(self, x: int) -> None:
        """Warn once per training run, not in every epoch."""
        if not self._has_warned and any(self._unhealthy.values()):
            self._has_warned = True
            for problem, layers in self._unhealthy.items():
                if layers:
                    more = f" and {len(layers) - _MAX_WARNED} more" if len(layers) > _MAX_WARNED else ""
                    names = ", ".join(f"`{layer}`" for layer in layers[:_MAX_WARNED]) + more
                    warnings.warn(f"{problem} gradients in {self._unit} {x}: {names}; {_ADVICE[problem]}", stacklevel=2)

    @property
    def _unit(self) -> str:
        return "epoch" if self.every is None else "update"

    # Results.

    def vanishing(self) -> list[str]:
        """Return the layers with vanishing gradients in the last epoch, or in the last `every` updates."""
        return list(self._unhealthy["vanishing"])

    def exploding(self) -> list[str]:
        """Return the layers with exploding gradients in the last epoch, or in the last `every` updates."""
        return list(self._unhealthy["exploding"])

    def panels(self) -> list[Panel]:
        """Return panels that show the last values of all parameters, and their history."""
        if not self._history.xs:
            return []
        marks = {name: problem for problem, layers in self._unhealthy.items() for name in self._last if layer_of(name) in layers}
        names = shown_names(self._history, marks)
        num_layers = len(set(map(layer_of, self._last)))
        problems = [f"{len(layers)} of {num_layers} layers {problem}" for problem, layers in self._unhealthy.items() if layers]
        title = f"{self.label} in {self._unit} {self._history.xs[-1]:g}" + (f": {'; '.join(problems)}" if problems else "")
        values = [self._last.get(name, math.nan) for name in names]
        return [
            Bars(title, self.label, names, [value if 0 < value < math.inf else math.nan for value in values], True, marks),
            heat_map(self._history, "parameters over time", self._unit, self.label, is_log=True, marks=marks),
            lines(self._history, "trend", self._unit, self.label, is_log=True),
        ]

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "sums": self._sums.state_dict(),
            "history": self._history.state_dict(),
            "last": dict(self._last),
            "unhealthy": {problem: list(layers) for problem, layers in self._unhealthy.items()},
            "every": self.every,
            "num_updates": self._num_updates,
            "has_warned": self._has_warned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums.load_state_dict(state["sums"])
        self._num_updates, self._has_warned = state["num_updates"], state["has_warned"]
        self._history, self._last, self._unhealthy = MetricHistory(), {}, {"vanishing": [], "exploding": []}
        if state["every"] == self.every:  # otherwise, the values were averaged over different intervals
            self._history.load_state_dict(state["history"])
            self._last = dict(state["last"])
            self._unhealthy = {problem: list(layers) for problem, layers in state["unhealthy"].items()}


class GradNormVis(GradientObserver):
    """Logs the norm of each parameter's gradient, averaged over the batches of each epoch.

    The values are logged as `grad_norm/<parameter>` and drawn as `plots/grad_norm.png` and `.html`. Parameters without
    a gradient are left out. `vanishing()` and `exploding()` return the affected layers. The first time that there
    are such layers, a warning lists them.
    """

    tag = "grad_norm"
    label = "gradient norm"

    def scale(self, size: int) -> float:
        return 1.0


class GradCoeffRMSVis(GradientObserver):
    """Logs the root mean square of the elements of each parameter's gradient, averaged over the batches of each epoch.

    Unlike the norm, the RMS does not grow with the number of elements, so you can compare large and small layers. The
    values are logged as `grad_rms/<parameter>` and drawn as `plots/grad_rms.png` and `.html`.
    """

    tag = "grad_rms"
    label = "gradient RMS"

    def scale(self, size: int) -> float:
        return 1 / math.sqrt(max(1, size))


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
