"""Draws the training loss and the losses of the evaluation sets."""

from __future__ import annotations

from os import PathLike
from typing import Any

from trainmaster.extensions.curves import SUFFIX, X_LABEL, Curves, check_curve_arguments
from trainmaster.extensions.epochs import epochs_done, is_epoch_complete, is_in_training
from trainmaster.extensions.figure_writer import FigureObserver
from trainmaster.figures.panels import Lines
from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.deferred_scalars import Pending
from trainmaster.loop.train_loss import SKIPPED, TRAIN_LOSS, guarded_fixtures
from trainmaster.loop.train_test_loop import TrainTestLoop
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures, always


class LossPlot(FigureObserver):
    """Logs the training loss and draws it with the evaluation losses, over epochs, batches or samples.

    With `over="epochs"`, each point is the mean loss of an epoch. With "batches" or "samples", each point is the loss
    of one batch, plotted against the number of batches or samples so far. You can attach several `LossPlot`s, one for
    each axis.

    The metrics are `train/loss` for each epoch, and `<set>/loss_by_batch` or `<set>/loss_by_sample`. Losses are fetched
    from the device a few hundred at a time, so that training rarely has to wait. The figure is called `loss`,
    `loss_by_batch` or `loss_by_sample`, and is saved as PNG and HTML in `path`, or in `plots` in the loop's
    `train_dir`.

    Args:
        smoothing: the weight of earlier values in the exponential moving average that is drawn over the raw values. With 0,
            no average is drawn. Over batches and samples, only the training loss is smoothed.
    """

    creates = {TRAIN_LOSS: "train_step_epoch"}

    def __init__(self, over: str = "epochs", smoothing: float = 0.0, path: str | PathLike[str] | None = None) -> None:
        check_curve_arguments(over, ("epochs", "batches", "samples"), smoothing, "LossPlot")
        super().__init__(f"loss{SUFFIX[over]}", path)
        self.over, self.smoothing = over, smoothing
        self.name = f"loss_plot{SUFFIX[over]}"
        self._curves = Curves("train")
        self._pending = Pending()
        self._num_batches = self._num_samples = 0
        self._epoch_sum, self._epoch_samples = 0.0, 0
        self._eval_pending = Pending()
        self._eval_sum, self._eval_samples = 0.0, 0
        self._batch_size = true_batch_size
        self._writer: Writer | None = None
        self._guarded: Fixtures | None = None
        self._is_component = False
        """Whether the extension is a component of a `TrainTestLoop`, which calls `on_batch_end`."""

    # Hooks.

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        self._guarded = guarded_fixtures(loop)
        self._is_component = isinstance(loop, TrainTestLoop)
        is_overridden = not self._is_component and (loop.is_overridden("get_true_batch_size") or loop.ranks.num > 1)
        self._batch_size = loop.whole_batch_size if is_overridden else true_batch_size  # saves a call per batch
        super().pre_train(loop)

    def pre_train_step_epoch(self) -> None:
        self._epoch_sum, self._epoch_samples = 0.0, 0

    def post_train_step_batch(self, loss: Any, batch: Any) -> None:
        if not self._is_component and loss is not None:
            self._add(self._batch_size(batch), loss)

    def on_batch_end(self, loop: TrainTestLoop) -> None:
        """Add the loss of the batch.

        This is not done in a post hook, because a `TrainTestLoop` captures its state before the post hooks of the
        batch, and the state must contain the loss.
        """
        loss, size = loop.fixtures["loss"], self._batch_size(loop.batch)
        if not loop.is_training:
            if self._eval_pending.add(size, loss):
                self._add_up_eval()
        else:
            self._add(size, loss)

    def _add(self, size: int, loss: Any) -> None:
        """Add the loss of a training batch. A batch that `NaNGuard` skips is only counted."""
        if self._guarded is not None and SKIPPED in self._guarded:
            self._log()
            self._num_batches += 1
            self._num_samples += size
        elif self._pending.add(size, loss):
            self._log()
            self._figure_writer.draw_if_due()

    def post_train_step_epoch(self, loop: Any, fixtures: Fixtures) -> None:
        self._log()
        if is_epoch_complete(loop) and self._epoch_samples:  # otherwise no batch had a loss
            mean, epoch_num = self._epoch_sum / max(1, self._epoch_samples), epochs_done(loop)
            if TRAIN_LOSS not in fixtures:  # otherwise another extension has recorded it
                fixtures[TRAIN_LOSS] = mean
                if self._writer is not None:
                    record(self._writer, "train/loss", mean, epoch_num, "epoch")
            if self.over == "epochs":
                self._curves.add("train", epoch_num, mean)
        self._figure_writer.draw_if_due()

    def pre_eval_step_epoch(self) -> None:
        self._eval_pending.clear()
        self._eval_sum, self._eval_samples = 0.0, 0

    def post_eval_step_epoch(
        self, loop: Any, fixtures: Fixtures, datasource_name: str, eval_losses: dict[str, float] | None = None
    ) -> None:
        if not is_in_training(loop, fixtures) or (eval_losses is not None and datasource_name not in eval_losses):
            return
        self._log()
        loss = self._eval_mean() if eval_losses is None else eval_losses[datasource_name]
        x = {"epochs": epochs_done(loop), "batches": self._num_batches, "samples": self._num_samples}[self.over]
        self._curves.add(datasource_name, x, loss)
        if self.over != "epochs":  # EvalState logs the losses over epochs
            record(self._writer, f"{datasource_name}/loss{SUFFIX[self.over]}", loss, x, X_LABEL[self.over])
        self._figure_writer.draw_if_due()

    @always
    def post_train(self) -> None:
        self._guarded = None  # so that the extension can be pickled
        self._log()
        super().post_train()

    # Values.

    def _log(self) -> None:
        """Fetch losses from the device, and add them to the sum of the epoch. Unless `over` is "epochs", also log and draw each loss."""
        rows: list[tuple[int, float]] = []
        for size, loss in self._pending.drain():
            self._num_batches += 1
            self._num_samples += size
            self._epoch_sum += loss * size
            self._epoch_samples += size
            rows.append((self._num_samples if self.over == "samples" else self._num_batches, loss))
        if self.over != "epochs":
            self._curves.extend("train", rows)
            for x, loss in rows:
                record(self._writer, f"train/loss{SUFFIX[self.over]}", loss, x, X_LABEL[self.over])

    def _add_up_eval(self) -> None:
        for size, loss in self._eval_pending.drain():
            self._eval_sum += loss * size
            self._eval_samples += size

    def _eval_mean(self) -> float:
        self._add_up_eval()
        return self._eval_sum / max(1, self._eval_samples)

    def panels(self) -> list[Lines]:
        self._log()
        if not self._curves:
            return []
        title = "Loss" if not self.smoothing else f"Loss (smoothing {self.smoothing:g})"
        # Over batches and samples, evaluation losses are not smoothed. They vary less than the losses of single batches, and
        # their average would lag by several epochs.
        lines = self._curves.lines(self.smoothing, lambda label: self.over == "epochs" or label == "train")
        return [Lines(title, X_LABEL[self.over], "loss", lines)]

    # State.

    def state_dict(self) -> dict[str, Any]:
        self._log()  # a checkpoint must not contain values that are not in the log
        return {
            "num_batches": self._num_batches,
            "num_samples": self._num_samples,
            "epoch_sum": self._epoch_sum,
            "epoch_samples": self._epoch_samples,
            "curves": self._curves.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._num_batches, self._num_samples = state["num_batches"], state["num_samples"]
        self._epoch_sum, self._epoch_samples = state["epoch_sum"], state["epoch_samples"]
        self._curves.load_state_dict(state["curves"])
