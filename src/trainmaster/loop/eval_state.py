"""The default extension that averages the loss of each evaluation set."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer


def as_sum(value: Any) -> Any:
    """A value to add up: on its device (no waiting for a GPU), in double precision where there is one."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64).reshape(())


class EvalState(Observer):
    """Counts batches and samples of an evaluation set and records its mean loss against `epoch_num` (E40).

    `losses/<set>/loss` is the mean over samples, `losses/<set>/loss_per_batch` the mean over batches: they differ when the last batch is
    smaller. An evaluation that was stopped half-way records nothing.
    """

    creates = dict.fromkeys(("num_batches", "num_samples", "cum_loss", "cum_sample_loss"), "eval_step_epoch")

    def pre_eval_step_epoch(self, fixtures: Fixtures) -> None:
        fixtures.update(num_batches=0, num_samples=0, cum_loss=0.0, cum_sample_loss=0.0)

    def post_eval_step_batch(self, fixtures: Fixtures, loss: Any, true_batch_size: int) -> None:
        loss = as_sum(loss)
        fixtures.modify("num_batches", fixtures["num_batches"] + 1)
        fixtures.modify("num_samples", fixtures["num_samples"] + true_batch_size)
        fixtures.modify("cum_loss", fixtures["cum_loss"] + loss)
        fixtures.modify("cum_sample_loss", fixtures["cum_sample_loss"] + loss * true_batch_size)

    def post_eval_step_epoch(
        self,
        writer: Writer,
        datasource_name: str,
        epoch_num: int,
        stopped: str | None,
        eval_losses: dict[str, float],
        num_batches: int,
        num_samples: int,
        cum_loss: Any,
        cum_sample_loss: Any,
    ) -> None:
        if stopped is None:
            eval_losses[datasource_name] = float(cum_sample_loss) / num_samples
            writer.add_scalar(f"losses/{datasource_name}/loss", eval_losses[datasource_name], epoch_num)
            writer.add_scalar(f"losses/{datasource_name}/loss_per_batch", float(cum_loss) / num_batches, epoch_num)
