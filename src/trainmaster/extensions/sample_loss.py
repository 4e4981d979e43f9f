"""Shows the distribution of the losses of individual samples, and finds the samples with the highest losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainmaster.arguments import check_choice, check_int
from trainmaster.errors import SettingError
from trainmaster.extensions.curves import file_name
from trainmaster.extensions.epochs import epochs_done, is_epoch_complete
from trainmaster.extensions.figure_writer import FigureWriter
from trainmaster.extensions.loss_histogram import ALMOST_ZERO, HardSample, LossHistogram
from trainmaster.extensions.per_evaluation import PerEvaluation
from trainmaster.figures.panels import Bars, Histogram, Panel
from trainmaster.figures.png import draw
from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.supervised import Supervised
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LossPerSample = Callable[[Any, Any], torch.Tensor]
"""A function that takes a batch and its prediction, and returns one loss for each sample."""
_MAX_BINS = 40
_MAX_BARS = 16
_LOG_RATIO = 30.0
"""The axis becomes logarithmic if the highest loss is more than this many times the lowest."""
_HINT = (
    "pass SampleLoss a function of (batch, prediction) that returns one loss per sample,\n"
    'for example lambda batch, prediction: cross_entropy(prediction, batch[1], reduction="none")'
)


class SampleLoss(Observer):
    """Shows the losses of individual samples: their distribution in the first and the last epoch, and the samples with the highest losses.

    `loss(batch, prediction)` returns the loss of each sample; if it returns several numbers for a sample, their mean is
    used. The default is the loop's own loss, called with `reduction="none"`. This requires that the loss has a
    parameter called `reduction` or, like torch's loss modules, an attribute of that name.

    For each set, four metrics are logged as `<set>/sample_loss/<metric>`: `median`, `p90` (the 90th percentile), `max`,
    and `hardest` (the index of the sample with the highest loss). `hardest()` returns a table of the samples with the
    highest losses. The figure of a set is `sample_loss_<set>`; `sample_loss_<set>.json` contains the table, which the
    dashboard shows. Losses are counted in bins, so memory use does not grow with the data, and the quantiles are
    accurate to within 7%.

    Args:
        num_hardest: how many of the samples with the highest losses to keep.
        over: "eval" for the evaluation sets, or "train" for the training data, with the losses from the training steps.
        index: a function that returns the indices of a batch's samples. By default, samples are counted in the order of
            the batches, so a sample keeps its index only if the data is not shuffled.
    """

    needs_whole_batches = True
    creates = {}

    def __init__(
        self,
        loss: LossPerSample | None = None,
        num_hardest: int = 16,
        path: str | PathLike[str] | None = None,
        *,
        over: str = "eval",
        index: Callable[[Any], Any] | None = None,
    ) -> None:
        check_int("num_hardest", num_hardest, min=1, hint="SampleLoss(num_hardest=16)")
        check_choice("over", over, ("eval", "train"), hint='SampleLoss(over="train")')
        self.over, self.loss, self.num_hardest, self.index = over, loss, num_hardest, index
        self._path = None if path is None else Path(path)
        self._figure_writers: dict[str, FigureWriter] = {}
        self._loss_per_sample: LossPerSample | None = loss
        self._evaluations = PerEvaluation(partial(LossHistogram, num_hardest))
        self._first: dict[str, _Snapshot] = {}
        self._last: dict[str, _Snapshot] = {}
        setattr(self, f"post_{over}_step_batch", self._add)  # a hook for the other stage would only add overhead

    def hardest(self) -> dict[str, list[HardSample]]:
        """Return the samples with the highest losses in the last epoch or evaluation of each set, with the highest loss first."""
        return {name: snapshot.losses.hardest for name, snapshot in self._last.items()}

    # Hooks.

    def pre_train(self, loop: Any) -> None:
        self._loss_per_sample = self.loss or loss_per_sample(loop)
        for writer in self._figure_writers.values():
            writer.start(loop)

    def pre_train_step_epoch(self, loop: Any) -> None:
        if self.over == "train":
            self._loss_per_sample = self._loss_per_sample or loss_per_sample(loop)  # the extension may have been attached during training
            self._evaluations.current = LossHistogram(self.num_hardest)

    def pre_eval_step_epoch(self, loop: Any, eval_losses: dict[str, float] | None = None) -> None:
        if self.over == "eval":
            self._loss_per_sample = self._loss_per_sample or loss_per_sample(loop)  # for an evaluation without training
            self._evaluations.start(eval_losses)

    def _add(self, batch: Any, prediction: Any) -> None:
        if self._loss_per_sample is None:  # the extension was attached in the middle of an epoch
            return
        with torch.no_grad():
            losses = _one_per_sample(self._loss_per_sample(batch, prediction), true_batch_size(batch))
        histogram = self._evaluations.current
        if self.index is None:
            indices = torch.arange(histogram.num_samples, histogram.num_samples + len(losses), device=losses.device)
        else:
            indices = torch.as_tensor(self.index(batch)).reshape(-1)
            if len(indices) != len(losses):
                raise SettingError(
                    f"`index` of SampleLoss returned {len(indices)} indices for a batch of {len(losses)} samples",
                    hint="return one index for each sample",
                )
        histogram.add(losses, indices)

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if self.over == "train" and is_epoch_complete(loop):
            losses, self._evaluations.current = self._evaluations.current, LossHistogram(self.num_hardest)
            self._end("train", losses, loop, writer)

    @always
    def post_eval_step_epoch(self, loop: Any, fixtures: Fixtures, datasource_name: str) -> None:
        losses = self._evaluations.end(fixtures.get("eval_losses")) if self.over == "eval" else None
        if losses is not None and fixtures.get("stopped") is None and fixtures.get("exc_type") is None:
            self._end(datasource_name, losses, loop, fixtures.get("writer"))
            if fixtures.get("standalone_eval"):
                self._figure_writers[datasource_name].draw()

    @always
    def post_train(self) -> None:
        for writer in self._figure_writers.values():
            writer.draw()

    # Values.

    def _end(self, name: str, losses: LossHistogram, loop: Any, writer: Writer | None) -> None:
        """Keep and log the losses of a finished epoch or evaluation."""
        epoch_num = epochs_done(loop)
        if not losses.num_samples:
            return
        self._last[name] = _Snapshot(epoch_num, losses)
        self._first.setdefault(name, self._last[name])
        hardest = losses.hardest[0]
        values = {"median": losses.quantile(0.5), "p90": losses.quantile(0.9), "max": hardest.loss, "hardest": hardest.index}
        for statistic, value in values.items():
            record(writer, f"{name}/sample_loss/{statistic}", value, epoch_num, "epoch")
        if name not in self._figure_writers:
            num_same = [file_name(other) for other in self._last if other != name].count(file_name(name))
            file = f"sample_loss_{file_name(name)}" + (f"_{num_same + 1}" if num_same else "")
            self._figure_writers[name] = FigureWriter(file, self._path, partial(self.panels, name), partial(self._facts, name))
            self._figure_writers[name].start(loop)
        self._figure_writers[name].draw_if_due()

    def _facts(self, name: str) -> dict[str, Any]:
        """Return the table of the hardest samples of one set, for the dashboard. A loss that is not finite is stored as text."""
        last = self._last[name]
        rows = [{"index": each.index, "loss": each.loss if isfinite(each.loss) else str(each.loss)} for each in last.losses.hardest]
        return {"set": name, "epoch": last.epoch_num, "num_samples": last.losses.num_samples, "hardest": rows}

    def panels(self, name: str | None = None) -> list[Panel]:
        """Return the figure of one set, or of all sets, as data."""
        if name is None:
            return [panel for each in self._last for panel in self.panels(each)]
        first, last = self._first[name], self._last[name]
        hardest = last.losses.hardest[:_MAX_BARS]
        return [
            _histogram(f"Loss of each sample of {name}", {f"epoch {each.epoch_num}": each.losses for each in (first, last)}),
            Bars(
                f"The hardest samples of {name}, epoch {last.epoch_num}",
                "loss",
                [f"sample {each.index}" for each in hardest],
                [each.loss for each in hardest],
            ),
        ]

    def figure(self, name: str | None = None) -> Figure:
        """Return the figure of one set, or of all sets, as a matplotlib figure, for a notebook."""
        return draw(self.panels(name))

    # State.

    def state_dict(self) -> dict[str, Any]:
        def saved(snapshots: dict[str, _Snapshot]) -> dict[str, Any]:
            return {name: {"epoch_num": each.epoch_num, "losses": each.losses.state_dict()} for name, each in snapshots.items()}

        return {"current": self._evaluations.current.state_dict(), "first": saved(self._first), "last": saved(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations.current = self._restored(state["current"])
        self._first, self._last = (
            {name: _Snapshot(each["epoch_num"], self._restored(each["losses"])) for name, each in state[kind].items()}
            for kind in ("first", "last")
        )
        self._figure_writers = {name: each for name, each in self._figure_writers.items() if name in self._last}

    def _restored(self, state: dict[str, Any]) -> LossHistogram:
        losses = LossHistogram(self.num_hardest)
        losses.load_state_dict(state)
        return losses


class _Snapshot(NamedTuple):
    """The losses of one set after an epoch."""

    epoch_num: int
    losses: LossHistogram


def _histogram(title: str, shown: dict[str, LossHistogram]) -> Histogram:
    """Return a histogram of the losses. The axis is logarithmic if they span a wide range, as they do late in training."""
    low = min(each.low for each in shown.values())
    high = max(each.high for each in shown.values())
    num_bins = min(_MAX_BINS, max(8, int(2 * max(each.num_samples for each in shown.values()) ** 0.5)))
    least = max(ALMOST_ZERO, min(each.quantile(0.02) for each in shown.values()))  # the few lower losses are counted in the first bin
    if low >= 0 and high > _LOG_RATIO * least:
        powers = np.linspace(np.log10(least), np.log10(high), num_bins + 1)
        edges, axis, x_label = 10**powers, powers, "loss, as a power of 10"
    else:
        edges = axis = np.linspace(low, high, num_bins + 1)
        x_label = "loss"
    return Histogram(title, x_label, "samples", {label: each.rebinned(edges) for label, each in shown.items()}, axis.tolist())


def loss_per_sample(loop: Any) -> LossPerSample:
    """Return a function that computes the loop's loss for each sample, without averaging over the batch."""
    unreduced = _without_reduction(loop)
    return partial(_supervised_loss, unreduced) if isinstance(loop, Supervised) else unreduced


def _supervised_loss(loss: LossPerSample, batch: Any, prediction: Any) -> Any:
    """Call the loss as a `Supervised` loop does."""
    return loss(prediction, batch[1])


def _without_reduction(loop: Any) -> LossPerSample:
    loss: Any = loop.loss if isinstance(loop, TrainManager) else None
    if isinstance(loop, TrainManager):
        overridden = [name for name in ("loss_forward", "train_loss_forward", "eval_loss_forward") if loop.is_overridden(name)]
        if overridden:
            raise SettingError(f"SampleLoss cannot get losses per sample from {type(loop).__name__}.{overridden[0]}", hint=_HINT)
    if isinstance(loss, nn.Module):
        reducing = [module for module in loss.modules() if getattr(module, "reduction", None) in ("mean", "sum")]
        if reducing:
            return partial(_unreduced, loss, reducing)
    elif callable(loss) and _takes_reduction(loss):
        return partial(loss, reduction="none")
    name = getattr(loss, "__qualname__", type(loss).__name__)
    reason = "the loop has no loss function" if loss is None else f"the loss {name} has no `reduction` that could be turned off"
    raise SettingError(f"SampleLoss cannot get losses per sample: {reason}", hint=_HINT)


def _unreduced(loss: nn.Module, reducing: list[Any], batch: Any, prediction: Any) -> Any:
    """Call a loss module with `reduction="none"`, and restore its reduction afterwards."""
    before = [module.reduction for module in reducing]
    try:
        for module in reducing:
            module.reduction = "none"
        return loss(batch, prediction)
    finally:
        for module, reduction in zip(reducing, before, strict=True):
            module.reduction = reduction


def _takes_reduction(loss: Callable[..., Any]) -> bool:
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _one_per_sample(losses: Any, num_samples: int) -> torch.Tensor:
    """Return one loss for each sample of a batch: the mean over all other dimensions."""
    if not isinstance(losses, torch.Tensor) or losses.ndim == 0 or len(losses) != num_samples:
        kind = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else f"a {type(losses).__name__}"
        raise SettingError(
            f"SampleLoss needs one loss for each sample, but its loss returned {kind} for a batch of {num_samples} samples",
            hint="the loss can average over any dimension except the first",
        )
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses
