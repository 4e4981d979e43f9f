"""The loop for batches of (inputs, targets), with any `nn.Module` and any PyTorch loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trainmaster.loop.batch_errors import is_pair, no_pair_error, note_call
from trainmaster.loop.train_manager import TrainManager


class Supervised(TrainManager):
    """A `TrainManager` for batches of (inputs, targets): it calls `model(inputs)` and `loss(prediction, targets)`.

    ```python
    def accuracy(prediction, targets):
        return (prediction.argmax(1) == targets).float().mean()

    loop = Supervised(model, nn.CrossEntropyLoss(), epochs=3, train_data=train_loader, eval_data=valid_loader,
                      metrics={"accuracy": accuracy})
    loop.train()
    ```

    It takes the same arguments as `TrainManager`. `predict` also accepts batches of inputs without targets. It treats
    a list of strings, numbers or other single samples as one batch of inputs, even if the list has only two items. For a
    model that takes several inputs, override `model_forward`.
    """

    loss_arguments = ("prediction", "targets")

    def model_forward(self, batch: Any) -> Any:
        if not is_pair(batch):
            raise no_pair_error(batch, type(self).__name__)
        inputs = batch[0]
        try:
            return self.model(inputs)
        except (TypeError, AttributeError) as error:
            call = f"self.model({'**' if isinstance(inputs, dict) else '*'}batch[0])"
            note_call(error, "model(inputs)", "inputs that are not a tensor", inputs, f"override model_forward(self, batch): return {call}")
            raise

    def eval_model_forward(self, batch: Any) -> Any:
        if self.mode_name == "predict":
            # A DataLoader of a TensorDataset(inputs) yields batches with one part; a DataLoader of strings yields batches
            # without parts.
            has_parts = isinstance(batch, (tuple, list)) and len(batch) in (1, 2) and any(map(_is_part, batch))
            if not has_parts or len(batch) == 1:
                batch = (batch[0] if has_parts else batch, None)
        return self.model_forward(batch)

    def loss_forward(self, batch: Any, prediction: Any) -> Any:
        if not is_pair(batch):
            raise no_pair_error(batch, type(self).__name__)
        try:
            return self.loss(prediction, batch[1])  # type: ignore[misc]  # the constructor refuses None, unless this is overridden
        except (TypeError, AttributeError) as error:
            hint = "override loss_forward(self, batch, prediction): return self.loss(prediction[0], batch[1])"
            note_call(error, "loss(prediction, targets)", "a prediction that is not a tensor", prediction, hint)
            raise


def _is_part(item: Any) -> bool:
    """Return whether an item of a batch can contain the inputs or targets of many samples.

    A string, a number or an image is a single sample.
    """
    is_container = isinstance(item, (torch.Tensor, np.ndarray, Mapping, tuple, list)) or dataclasses.is_dataclass(item)
    return is_container or callable(getattr(item, "to", None))
