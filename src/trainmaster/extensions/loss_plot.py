"""The loss as a curve: of training and of every evaluation set."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from trainmaster.extensions.curves import SUFFIX, X_LABEL, Curves, checked_over, checked_smoothing, epochs_done, is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.figures.panels import Lines
from trainmaster.figures.png import draw
from trainmaster.loop.batches import true_batch_size
from trainmaster.loop.pending import Pending
from trainmaster.loop.train_loss import TRAIN_LOSS, LossMean, record_train_loss
from trainmaster.loop.train_test_loop import TrainTestLoop
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LossPlot(Observer):
    """Records the training loss and draws it, with those of the evaluation sets, over epochs, batches or samples (E43).

    Over epochs a point is the mean of an epoch; over batches or samples it is the loss of one batch, against how many batches were done or
    samples seen in all. Evaluation sets are drawn at the same place. Several may be attached, one for each axis.

    Numbers go to the writer: `losses/train/loss` for each epoch, and `losses_by_batch/<set>/loss` or `losses_by_sample/<set>/loss`. No
    step waits for them: they are taken from their device some hundred at a time. The figure is `loss`, `loss_by_batch` or
    `loss_by_sample`, in `path` or in `plots` below the loop's `train_dir`, as PNG and as HTML.

    Args:
        smoothing: the weight of what was before in a moving mean, which is drawn over the values themselves; 0 for none. Over batches and
            samples it is for the training loss only.
    """

    is_guarded = False
    creates = {TRAIN_LOSS: "train_step_epoch"}

    def __init__(self, over: str = "epochs", smoothing: float = 0.0, path: str | PathLike[str] | None = None) -> None:
        self.over = checked_over(over, ("epochs", "batches", "samples"), "LossPlot")
        self.smoothing = checked_smoothing(smoothing, "LossPlot")
        self.name = f"loss_plot{SUFFIX[over]}"
        self._drawing = Drawing(f"loss{SUFFIX[over]}", path, self.panels)
        self._curves = Curves("train")
        self._pending = Pending()
        self._num_batches = self._num_samples = 0
        self._sum, self._num = 0.0, 0
        """Over the samples of the epoch: their losses, and how many they are."""
        self._eval_mean = LossMean()
        self._size_of = true_batch_size
        self._writer: Writer | None = None
        self._is_component = False
        """It stands in a `TrainTestLoop`, which calls `on_batch_end`."""

    # ---- hooks

    def pre_train(self, loop: Any, writer: Writer | None = None) -> None:
        self._writer = writer
        self._is_component = isinstance(loop, TrainTestLoop)
        has_own_size = not self._is_component and loop.is_overridden("get_true_batch_size")
        self._size_of = loop.get_true_batch_size if has_own_size else true_batch_size  # one call less per batch
        self._drawing.begin(loop)

    def pre_train_step_epoch(self) -> None:
        self._sum, self._num = 0.0, 0

    def post_train_step_batch(self, loss: Any, batch: Any) -> None:
        if not self._is_component and self._pending.add(self._size_of(batch), loss):
            self._record()
            self._drawing.refresh()

    def on_batch_end(self, loop: TrainTestLoop) -> None:
        """In a `TrainTestLoop` states are captured here, before the hooks of the batch, and have to have its loss."""
        loss, size = loop.fixtures["loss"], self._size_of(loop.batch)
        if not loop.is_training:
            self._eval_mean.add(loss, size)
        elif self._pending.add(size, loss):
            self._record()
            self._drawing.refresh()

    def post_train_step_epoch(self, loop: Any, fixtures: Fixtures) -> None:
        self._record()
        if is_epoch_complete(loop):
            mean, epoch_num = self._sum / max(1, self._num), epochs_done(loop)
            record_train_loss(fixtures, self._writer, mean, epoch_num)
            if self.over == "epochs":
                self._curves.add("train", epoch_num, mean)
        self._drawing.refresh()

    def pre_eval_step_epoch(self) -> None:
        self._eval_mean.reset()

    def post_eval_step_epoch(
        self,
        loop: Any,
        datasource_name: str,
        eval_losses: dict[str, float] | None = None,
        stopped: str | None = None,
        standalone_eval: bool = False,
    ) -> None:
        is_part = not (standalone_eval or getattr(loop, "is_testing", False))  # of the training
        if not is_part or stopped is not None or (eval_losses is not None and datasource_name not in eval_losses):
            return
        self._record()
        loss = self._eval_mean.mean if eval_losses is None else eval_losses[datasource_name]
        name = datasource_name if datasource_name != "train" else "train_evaluated"  # not the curve of the training itself
        x = {"epochs": epochs_done(loop), "batches": self._num_batches, "samples": self._num_samples}[self.over]
        self._curves.add(name, x, loss)
        if self.over != "epochs" and self._writer is not None:  # over epochs they are recorded by EvalState
            self._writer.add_scalar(f"losses{SUFFIX[self.over]}/{name}/loss", loss, x)
        self._drawing.refresh()

    @always
    def post_train(self) -> None:
        self._record()
        self._drawing.draw()

    # ---- numbers

    def _record(self) -> None:
        """Take in what waits: for the mean of the epoch, the log, and the curve."""
        rows: list[tuple[int, float]] = []
        for size, loss in self._pending.drain():
            self._num_batches += 1
            self._num_samples += size
            self._sum += loss * size
            self._num += size
            rows.append((self._num_samples if self.over == "samples" else self._num_batches, loss))
        if self.over != "epochs":
            self._curves.extend("train", rows)
            if self._writer is not None:
                for x, loss in rows:
                    self._writer.add_scalar(f"losses{SUFFIX[self.over]}/train/loss", loss, x)

    def state_dict(self) -> dict[str, Any]:
        self._record()  # what is in a checkpoint is in the log
        numbers = {"num_batches": self._num_batches, "num_samples": self._num_samples, "sum": self._sum, "num": self._num}
        return {**numbers, "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.clear()
        self._num_batches, self._num_samples = state["num_batches"], state["num_samples"]
        self._sum, self._num = state["sum"], state["num"]
        self._curves.load_state_dict(state["curves"])

    # ---- the figure

    def panels(self) -> list[Lines]:
        """The figure as data; nothing before the first number."""
        self._record()
        if not len(self._curves):
            return []
        title = "Loss" if not self.smoothing else f"Loss (smoothing {self.smoothing:g})"
        # Beside single batches an evaluation is smooth already, and a mean over the last ten would be ten epochs late.
        lines = self._curves.lines(self.smoothing, lambda label: self.over == "epochs" or label == "train")
        return [Lines(title, X_LABEL[self.over], "loss", lines)]

    def figure(self) -> Figure:
        """The figure as one of matplotlib, for a notebook."""
        return draw(self.panels())
