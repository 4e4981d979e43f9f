"""The default extension that averages the loss on each evaluation set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainmaster.errors import SettingError
from trainmaster.loop.metric import loss_name
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Fixtures, Observer

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager


def as_sum(value: Any) -> Any:
    """Convert a value to a scalar that can be summed, in double precision if its device supports it.

    A tensor stays on its device, so that nothing waits for a GPU.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64).reshape(())


class EvalState(Observer):
    """Counts the batches and samples of each evaluation set, and records the set's mean loss for each epoch.

    `<set>/loss` is the mean over samples. With `per_batch`, the mean over batches is also recorded, as
    `<set>/loss_per_batch`; the two differ if the last batch is smaller. Nothing is recorded for an evaluation that is
    stopped, or for a set in which a batch has no loss.
    """

    on_every_rank = True
    creates = dict.fromkeys(("num_batches", "num_samples", "cum_loss", "cum_sample_loss"), "eval_step_epoch")

    def __init__(self, per_batch: bool = False) -> None:
        if not isinstance(per_batch, bool):
            raise SettingError(f"per_batch={per_batch!r}: expected True or False")
        self.per_batch = per_batch

    def pre_eval_step_epoch(self, fixtures: Fixtures) -> None:
        fixtures.update(num_batches=0, num_samples=0, cum_loss=0.0, cum_sample_loss=0.0)

    def post_eval_step_batch(self, fixtures: Fixtures, loss: Any, true_batch_size: int) -> None:
        fixtures.modify("num_batches", fixtures["num_batches"] + 1)
        fixtures.modify("num_samples", fixtures["num_samples"] + true_batch_size)
        if loss is None or fixtures["cum_loss"] is None:
            fixtures.modify("cum_loss", None)
            fixtures.modify("cum_sample_loss", None)
            return
        loss = as_sum(loss)
        fixtures.modify("cum_loss", fixtures["cum_loss"] + loss)
        fixtures.modify("cum_sample_loss", fixtures["cum_sample_loss"] + loss * true_batch_size)

    def post_eval_step_epoch(
        self,
        train_manager: TrainManager,
        writer: Writer,
        datasource_name: str,
        stopped: str | None,
        eval_losses: dict[str, float],
        num_batches: int,
        num_samples: int,
        cum_loss: Any,
        cum_sample_loss: Any,
    ) -> None:
        if stopped is None and cum_loss is not None:
            eval_losses[datasource_name] = float(cum_sample_loss) / num_samples
            x = train_manager.eval_x
            record(writer, loss_name(datasource_name), eval_losses[datasource_name], x, "epoch")
            if self.per_batch:
                record(writer, f"{datasource_name}/loss_per_batch", float(cum_loss) / num_batches, x, "epoch")
