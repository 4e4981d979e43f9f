"""The gradients of every parameter over a training: their norms, or the size of their coefficients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import nn

from trainmaster.errors import SettingError
from trainmaster.extensions.course import Course, heat_map, lines, shown_names
from trainmaster.extensions.curves import epochs_done, is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.extensions.gradient_health import exploding_layers, layer_of, vanishing_layers
from trainmaster.extensions.norm_sums import NormSums
from trainmaster.figures.panels import Bars, Panel
from trainmaster.figures.png import draw
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ADVICE = {
    "vanishing": "try ReLU or GELU in place of sigmoid or tanh, a normalisation, residual connections, or larger initial weights",
    "exploding": "try gradient clipping, a lower learning rate, a normalisation, or smaller initial weights",
}
_MIN_UNITS = 3
"""How many units a layer's past has, before it is compared with it."""


class GradientView(Observer):
    """What `GradNormVis` and `GradCoeffRMSVis` share: sums, units of time, records and figures.

    Gradients are taken as `backward` leaves them: with accumulation, those accumulated so far; before any clipping; loss scaling included.
    Norms are added up on their device, and fetched once a unit.
    """

    is_guarded = False  # nothing is drawn or switched here, and a guard would cost more than the norms
    tag = ""
    word = ""
    _what = ""

    def __init__(self, every: int | None = None, path: str | PathLike[str] | None = None) -> None:
        """`every` is the number of updates that make a column of the figure and a row of the log; None for an epoch."""
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise SettingError(f"every={every!r}: wanted a number of updates, or None for epochs", hint=f"{type(self).__name__}(every=500)")
        self.every = every
        if every is not None:
            self.post_optimizer_step = self._count_update  # a hook only where it is needed: a stage that nobody hooks is nearly free
        self._drawing = Drawing(self.tag, path, self.panels)
        self._sums = NormSums()
        self._course = Course()
        self._last: dict[str, float] = {}
        self._found: dict[str, list[str]] = {"vanishing": [], "exploding": []}
        self._num_updates = 0
        self._has_warned = False

    def scale(self, size: int) -> float:
        """What the norm of a gradient of so many coefficients is multiplied by."""
        raise NotImplementedError

    # Hooks.

    def pre_train(self, loop: Any) -> None:
        self._drawing.begin(loop)

    def pre_train_step_epoch(self, model: nn.Module) -> None:
        self._sums.watch(model)
        if self.every is None:
            self._sums.clear()  # what an epoch left that broke off

    def post_backward(self) -> None:
        self._sums.add()

    def _count_update(self, fixtures: Fixtures) -> None:
        self._num_updates += 1
        if self.every is not None and self._num_updates % self.every == 0:
            self._end_unit(updates_done(fixtures), fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if self.every is None and is_epoch_complete(loop):
            self._end_unit(epochs_done(loop), writer)

    @always
    def post_train(self) -> None:
        self._drawing.draw()

    # The end of a unit.

    def _end_unit(self, at: int, writer: Writer | None) -> None:
        means = self._sums.take()
        self._last = {name: mean.norm * self.scale(self._sums.sizes[name]) for name, mean in means.items()}
        self._judge([name for name, mean in means.items() if mean.num_odd])
        self._course.add(at, self._last)
        if writer is not None:
            for name, value in self._last.items():
                if not math.isnan(value):
                    writer.add_scalar(f"{self.tag}/{name}/{self.word}", value, at)
        self._warn(at)
        self._drawing.refresh()

    def _judge(self, odd: list[str]) -> None:
        """Find the layers that vanish or explode in the last unit; the gradients of `odd` were not finite in some batch."""
        rms = {name: value * self._to_rms(name) for name, value in self._last.items()} | dict.fromkeys(odd, math.inf)
        exploding = exploding_layers(rms, {name: value * self._to_rms(name) for name, value in self._course.medians(_MIN_UNITS).items()})
        self._found = {"vanishing": vanishing_layers(rms, exploding), "exploding": exploding}

    def _warn(self, at: int) -> None:
        """Once a training: there is no need to say it every epoch."""
        if not self._has_warned and any(self._found.values()):
            self._has_warned = True
            for word, layers in self._found.items():
                if layers:
                    named = ", ".join(f"`{layer}`" for layer in layers[:8]) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")
                    warnings.warn(f"{word} gradients in {self._unit} {at}: {named}; {_ADVICE[word]}", stacklevel=2)

    @property
    def _unit(self) -> str:
        return "epoch" if self.every is None else "update"

    # What was found.

    def vanishing(self) -> list[str]:
        """The layers that got next to no gradient in the last epoch, or the last `every` updates; `gradient_health.py` has the rules."""
        return list(self._found["vanishing"])

    def exploding(self) -> list[str]:
        """The layers that got far too much."""
        return list(self._found["exploding"])

    def _to_rms(self, name: str) -> float:
        size = max(1, self._sums.sizes.get(name, 1))
        return 1 / (self.scale(size) * math.sqrt(size))

    def panels(self) -> list[Panel]:
        """The last unit's profile over the parameters, and how it came to be; nothing before the end of the first."""
        if not self._course.xs:
            return []
        marks = {name: word for word, layers in self._found.items() for name in self._last if layer_of(name) in layers}
        names = shown_names(self._course, marks)
        told = "; ".join(
            f"{len(layers)} of {len(set(map(layer_of, self._last)))} layers {word}" for word, layers in self._found.items() if layers
        )
        title = f"{self._what} in {self._unit} {self._course.xs[-1]:g}" + (f": {told}" if told else "")
        values = [self._last.get(name, math.nan) for name in names]
        profile = Bars(title, self._what, names, [value if 0 < value < math.inf else math.nan for value in values], True, marks)
        return [
            profile,
            heat_map(self._course, "parameters by time", self._unit, self._what, is_log=True, marks=marks),
            lines(self._course, "course", self._unit, self._what, is_log=True),
        ]

    def figure(self) -> Figure:
        """The figure as it is now, for a notebook."""
        return draw(self.panels())

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "sums": self._sums.state_dict(),
            "course": self._course.state_dict(),
            "last": dict(self._last),
            "found": {word: list(layers) for word, layers in self._found.items()},
            "every": self.every,
            "num_updates": self._num_updates,
            "has_warned": self._has_warned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums.load_state_dict(state["sums"])
        self._num_updates, self._has_warned = state["num_updates"], state["has_warned"]
        if state["every"] != self.every:  # epochs and updates have no place on one axis
            self._course, self._last, self._found = Course(), {}, {"vanishing": [], "exploding": []}
            return
        self._course.load_state_dict(state["course"])
        self._last, self._found = dict(state["last"]), {word: list(layers) for word, layers in state["found"].items()}


class GradNormVis(GradientView):
    """The norm of each parameter's gradient: its mean over the batches of every epoch (E42).

    Recorded as `grad_norm/<parameter>/norm`, drawn as `plots/grad_norm.png` and `.html`. Parameters without a gradient are left out.
    `vanishing()` and `exploding()` name layers; the first time there are some, a warning does.
    """

    tag, word = "grad_norm", "norm"
    _what = "norm of the gradient"

    def scale(self, size: int) -> float:
        return 1.0


class GradCoeffRMSVis(GradientView):
    """The root mean square over the coefficients of each parameter's gradient: its mean over the batches of every epoch (E42).

    Beside `GradNormVis` it does not grow with the number of coefficients, so that large and small layers compare. Recorded as
    `grad_rms/<parameter>/rms`, drawn as `plots/grad_rms.png` and `.html`.
    """

    tag, word = "grad_rms", "rms"
    _what = "RMS of the gradient"

    def scale(self, size: int) -> float:
        return 1 / math.sqrt(max(1, size))


def updates_done(fixtures: Fixtures) -> int:
    """The updates of a training, seen from a hook after the optimizer's step: one of the loops has not counted it by then."""
    return int(fixtures["step_num"]) if "step_num" in fixtures else int(fixtures["optim_step_num"]) + 1
