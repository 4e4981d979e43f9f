"""The loss of each sample: how losses are distributed, and which samples are the hardest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.extensions.curves import checked_over, epochs_done, file_name, is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.extensions.loss_histogram import ALMOST_ZERO, HardSample, LossHistogram
from trainmaster.figures.panels import Bars, Histogram, Panel
from trainmaster.figures.png import draw
from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Losses = Callable[[Any, Any], torch.Tensor]
"""Called with a batch and its prediction; one loss for each sample."""
_NUM_INTERVALS = 40
_MAX_BARS = 16
_LOG_FROM = 30.0
"""How many times the least loss the greatest is where the axis becomes logarithmic."""
_WAYS = (
    "give SampleLoss a function of (batch, prediction) that returns one loss per sample,\n"
    'for example lambda batch, prediction: cross_entropy(prediction, batch[1], reduction="none")'
)


class SampleLoss(Observer):
    """Shows how the losses of single samples are distributed, in the first and the last epoch, and which samples are the hardest.

    Losses per sample come from `loss(batch, prediction)`; what it returns for a sample is averaged where it is more than one number. By
    default it is the loop's own loss, if that has a `reduction` that can be turned off: a parameter of that name, or the attribute that
    torch's loss modules have.

    For each set the writer gets `sample_loss/<set>/median`, `p90` (90 % of the losses are below), `max` and `hardest` (the index of that
    sample); `hardest()` gives the table. The figure of a set is `sample_loss_<set>`. Memory does not grow with the data: losses are
    counted by intervals, which tell them apart to within 7 %.

    Args:
        num_hardest: how many of the hardest samples to keep.
        over: "eval" for the evaluation sets, or "train" for the training data, with the losses as they were when each batch was trained on.
        index: gives the indices of a batch's samples from the batch; by default they are counted as they come, so that a sample keeps its
            index only where the data is not shuffled.
    """

    def __init__(
        self,
        loss: Losses | None = None,
        num_hardest: int = 16,
        path: str | PathLike[str] | None = None,
        *,
        over: str = "eval",
        index: Callable[[Any], Any] | None = None,
    ) -> None:
        for name, function in (("loss", loss), ("index", index)):
            if function is not None and not callable(function):
                raise SettingError(f"SampleLoss({name}={function!r}): wanted a function, or None")
        if isinstance(num_hardest, bool) or not isinstance(num_hardest, int) or num_hardest < 1:
            raise SettingError(f"SampleLoss(num_hardest={num_hardest!r}): wanted a whole number, 1 or more")
        self.over = checked_over(over, ("eval", "train"), "SampleLoss")
        self.loss, self.num_hardest, self.index = loss, num_hardest, index
        Drawing("sample_loss", path, list)  # refuses a path that is none
        self._path = path
        self._drawings: dict[str, Drawing] = {}
        self._losses_of: Losses | None = loss
        self._running = LossHistogram(num_hardest)
        """Of the epoch or evaluation so far."""
        self._num_samples = 0
        self._first: dict[str, _Looked] = {}
        self._last: dict[str, _Looked] = {}
        setattr(self, f"post_{over}_step_batch", self._look)  # of the other stage there is no hook, which would cost

    def hardest(self) -> dict[str, list[HardSample]]:
        """The hardest samples of each set when it was last looked at, the hardest first."""
        return {name: looked.losses.hardest for name, looked in self._last.items()}

    # ---- hooks

    def pre_train(self, loop: Any) -> None:
        self._losses_of = self.loss or losses_per_sample(loop)
        for drawing in self._drawings.values():
            drawing.begin(loop)

    def pre_train_step_epoch(self, loop: Any) -> None:
        if self.over == "train":
            self._losses_of = self._losses_of or losses_per_sample(loop)  # it may have come while training runs
            self._start()

    def pre_eval_step_epoch(self, loop: Any) -> None:
        if self.over == "eval":
            self._losses_of = self._losses_of or losses_per_sample(loop)  # an evaluation on its own
            self._start()

    def _look(self, batch: Any, prediction: Any) -> None:
        if self._losses_of is None:  # in the middle of an epoch, whose losses are not all known
            return
        with torch.no_grad():
            losses = _one_each(self._losses_of(batch, prediction), true_batch_size(batch))
        number = self._num_samples
        self._num_samples += len(losses)
        if self.index is None:
            indices = torch.arange(number, self._num_samples, device=losses.device)
        else:
            indices = torch.as_tensor(self.index(batch)).reshape(-1)
            if len(indices) != len(losses):
                raise SettingError(f"SampleLoss: `index` gave {len(indices)} indices for a batch of {len(losses)} samples")
        self._running.add(losses, indices)

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if self.over == "train" and is_epoch_complete(loop):
            self._end("train", loop, writer)

    def post_eval_step_epoch(
        self, loop: Any, datasource_name: str, writer: Writer | None = None, stopped: str | None = None, standalone_eval: bool = False
    ) -> None:
        if self.over == "eval" and stopped is None:
            self._end(datasource_name, loop, writer)
            if standalone_eval:
                self._drawings[datasource_name].draw()

    @always
    def post_train(self) -> None:
        for drawing in self._drawings.values():
            drawing.draw()

    # ---- numbers

    def _start(self) -> None:
        self._running, self._num_samples = LossHistogram(self.num_hardest), 0

    def _end(self, name: str, loop: Any, writer: Writer | None) -> None:
        """An epoch or evaluation is over: keep what was counted, record it, and draw it if it is time."""
        epoch_num, losses = epochs_done(loop), self._running
        self._start()
        if not len(losses):
            return
        looked = self._last[name] = _Looked(epoch_num, losses)
        self._first.setdefault(name, looked)
        if writer is not None:
            hardest = losses.hardest[0]
            numbers = {"median": losses.quantile(0.5), "p90": losses.quantile(0.9), "max": hardest.loss, "hardest": hardest.index}
            for kind, number in numbers.items():
                writer.add_scalar(f"sample_loss/{name}/{kind}", number, epoch_num)
        if name not in self._drawings:
            taken = [file_name(other) for other in self._last if other != name].count(file_name(name))
            file = f"sample_loss_{file_name(name)}" + (f"_{taken + 1}" if taken else "")
            self._drawings[name] = Drawing(file, self._path, partial(self.panels, name))
            self._drawings[name].begin(loop)
        self._drawings[name].refresh()

    def state_dict(self) -> dict[str, Any]:
        return {
            "running": self._running.state_dict(),
            "num_samples": self._num_samples,
            **{
                kind: {name: {"epoch_num": each.epoch_num, **each.losses.state_dict()} for name, each in looked.items()}
                for kind, looked in (("first", self._first), ("last", self._last))
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start()
        self._running.load_state_dict(state["running"])
        self._num_samples = state["num_samples"]
        self._first, self._last = ({name: self._looked(each) for name, each in state[kind].items()} for kind in ("first", "last"))
        self._drawings = {name: each for name, each in self._drawings.items() if name in self._last}

    def _looked(self, state: dict[str, Any]) -> _Looked:
        losses = LossHistogram(self.num_hardest)
        losses.load_state_dict(state)
        return _Looked(state["epoch_num"], losses)

    # ---- the figure

    def panels(self, name: str | None = None) -> list[Panel]:
        """The figure of a set as data, or that of all."""
        if name is None:
            return [panel for each in self._last for panel in self.panels(each)]
        first, last = self._first[name], self._last[name]
        shown = {f"epoch {each.epoch_num}": each.losses for each in (first, last)}
        hardest = last.losses.hardest[:_MAX_BARS]
        return [
            _histogram(f"Loss of each sample of {name}", shown),
            Bars(
                f"The hardest samples of {name}, epoch {last.epoch_num}",
                "loss",
                [f"sample {each.index}" for each in hardest],
                [each.loss for each in hardest],
            ),
        ]

    def figure(self, name: str | None = None) -> Figure:
        """The figure as one of matplotlib, for a notebook."""
        return draw(self.panels(name))


class _Looked(NamedTuple):
    """What was found in a set after so many epochs."""

    epoch_num: int
    losses: LossHistogram


def _histogram(title: str, shown: dict[str, LossHistogram]) -> Histogram:
    """Intervals that fit all that is shown: of powers of ten where losses span much, as they do in the end."""
    low = min(each.low for each in shown.values())
    high = max(each.high for each in shown.values())
    num_intervals = min(_NUM_INTERVALS, max(8, int(2 * max(map(len, shown.values())) ** 0.5)))
    least = max(ALMOST_ZERO, min(each.quantile(0.02) for each in shown.values()))  # a few that are less are in the first interval
    if low >= 0 and high > _LOG_FROM * least:
        powers = np.linspace(np.log10(least), np.log10(high), num_intervals + 1)
        edges, axis, x_label = 10**powers, powers, "loss, as a power of 10"
    else:
        edges = axis = np.linspace(low, high, num_intervals + 1)
        x_label = "loss"
    return Histogram(title, x_label, "samples", {label: each.between(edges) for label, each in shown.items()}, axis.tolist())


def losses_per_sample(loop: Any) -> Losses:
    """The loss of a loop without its reduction, where that can be turned off."""
    loss = getattr(loop, "loss", None) if isinstance(loop, TrainManager) else None
    if isinstance(loop, TrainManager):
        own = [name for name in ("loss_forward", "train_loss_forward", "eval_loss_forward") if loop.is_overridden(name)]
        if own:
            raise SettingError(f"SampleLoss cannot get losses per sample from {type(loop).__name__}.{own[0]}", hint=_WAYS)
    if isinstance(loss, nn.Module):
        reducing = [module for module in loss.modules() if getattr(module, "reduction", None) in ("mean", "sum")]
        if reducing:
            return Unreduced(loss, reducing)
    elif callable(loss) and _takes_reduction(loss):
        return partial(loss, reduction="none")
    raise SettingError(
        "SampleLoss cannot get losses per sample: the loop has no loss function that it could ask"
        if loss is None
        else f"SampleLoss cannot get losses per sample from the loss {getattr(loss, '__qualname__', type(loss).__name__)}",
        why=None if loss is None else "it has no `reduction` that could be turned off",
        hint=_WAYS,
    )


class Unreduced:
    """A loss module that is called as if its `reduction` were "none"; as soon as it is through it is what it was."""

    def __init__(self, loss: nn.Module, reducing: list[Any]) -> None:
        self._loss, self._reducing = loss, reducing

    def __call__(self, batch: Any, prediction: Any) -> torch.Tensor:
        before = [module.reduction for module in self._reducing]
        try:
            for module in self._reducing:
                module.reduction = "none"
            losses: torch.Tensor = self._loss(batch, prediction)
            return losses
        finally:
            for module, reduction in zip(self._reducing, before, strict=True):
                module.reduction = reduction


def _takes_reduction(loss: Callable[..., Any]) -> bool:
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a function without a signature that could be read
        return False


def _one_each(losses: Any, num_samples: int) -> torch.Tensor:
    """One loss for each sample of a batch; what is more for a sample is averaged."""
    if not isinstance(losses, torch.Tensor) or losses.ndim == 0 or len(losses) != num_samples:
        found = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else f"a {type(losses).__name__}"
        raise SettingError(
            f"SampleLoss wants one loss for each sample, and its loss gave {found} for a batch of {num_samples}",
            hint="it may average over all dimensions but the first, and not over that",
        )
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses
