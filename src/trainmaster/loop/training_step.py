"""The methods that make up one step of a `TrainManager`. Subclasses can override them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.loop import batches
from trainmaster.loop.batch_errors import note_whole_batch, swapped_error
from trainmaster.loop.losses import backward_error, is_torch_loss
from trainmaster.loop.ranks import Ranks
from trainmaster.stages import Extensible, fixture

Loss = Callable[[Any, Any], torch.Tensor]


class TrainingStep(Extensible):
    """The forward pass, the loss, the backward pass and the update for one batch."""

    model: nn.Module
    loss: Loss | None
    optimizer: Optimizer | None
    initialization: Callable[[nn.Module], Any] | None
    ranks: Ranks

    def model_forward(self, batch: Any) -> Any:
        try:
            return self.model(batch)
        except (TypeError, AttributeError) as error:
            note_whole_batch(error, "model(batch)", batch)
            raise

    def train_model_forward(self, batch: Any) -> Any:
        return self.model_forward(batch)

    def eval_model_forward(self, batch: Any) -> Any:
        return self.model_forward(batch)

    def loss_forward(self, batch: Any, prediction: Any) -> Any:
        if isinstance(batch, torch.Tensor) and is_torch_loss(self.loss):
            raise swapped_error(self.loss)
        try:
            return self.loss(batch, prediction)  # type: ignore[misc]  # the constructor refuses None, unless this is overridden
        except (TypeError, AttributeError) as error:
            note_whole_batch(error, "loss(batch, prediction)", batch)
            raise

    def train_loss_forward(self, batch: Any, prediction: Any) -> Any:
        return self.loss_forward(batch, prediction)

    def eval_loss_forward(self, batch: Any, prediction: Any) -> Any:
        return self.loss_forward(batch, prediction)

    def zero_grad(self) -> None:
        (self.optimizer or self.model).zero_grad()

    def backward(self, loss: Any) -> None:
        try:
            loss.backward()
        except (RuntimeError, AttributeError) as error:
            explained = backward_error(loss, error, self.model)
            if explained is None:
                raise
            raise explained from error

    def optimizer_step(self) -> None:
        self.optimizer.step()  # type: ignore[union-attr]  # the constructor refuses None, unless this is overridden

    def get_true_batch_size(self, batch: Any) -> int:
        return batches.true_batch_size(batch)

    @fixture("train_step_batch", "eval_step_batch", "predict_step_batch")
    def true_batch_size(self, batch: Any) -> int:
        """Return the number of samples in the batch, across all ranks.

        This is a lazy fixture, so samples are counted only if a hook asks for it.
        """
        return self.whole_batch_size(batch)

    def whole_batch_size(self, batch: Any) -> int:
        """Return the number of samples in the current batch, across all ranks. `batch` is this rank's part of it."""
        if self.fixtures.get("mode_name") == "predict":  # predict() does not divide batches
            return self.get_true_batch_size(batch)
        return self.ranks.whole_size(lambda: self.get_true_batch_size(batch))

    def initialize_params(self) -> None:
        """Initialize the weights of a new model with the model's `initialize_params`, or else with `initialization`.

        The model's `initialize_params` may take fixtures.
        """
        own = getattr(self.model, "initialize_params", None)
        if callable(own):
            self.fixtures(own)
        elif self.initialization is not None:
            self.initialization(self.model)

    def is_overridden(self, method: str) -> bool:
        """Return whether a subclass, or this object itself, has its own version of `method`."""
        found = getattr(type(self), method)
        ours = (kind for kind in type(self).__mro__ if kind.__module__.startswith("trainmaster.loop."))
        return method in vars(self) or all(vars(kind).get(method) is not found for kind in ours)

    def overridden_or_shared(self, method: str) -> Callable[..., Any]:
        """Return `method` if it is overridden, otherwise the method that it would call. This saves one call per batch.

        For example, `train_model_forward` would call `model_forward`.
        """
        found: Callable[..., Any] = getattr(self, method if self.is_overridden(method) else method.removeprefix("train_"))
        return found
