"""Error messages for batches that do not fit the model or the loss."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from trainmaster.errors import SettingError
from trainmaster.loop.batches import outline


def is_pair(batch: Any) -> bool:
    """Return whether a batch is a pair of inputs and targets."""
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def no_pair_error(batch: Any, who: str) -> SettingError:
    hint = "pass a DataLoader of pairs, or a list of batches: [(inputs, targets)]"
    if not isinstance(batch, torch.Tensor):
        first, last = _parts(batch)
        hint = (
            "return pairs from the data set, or define how to call the model and the loss:\n"
            "class Loop(TrainManager):\n"
            "    def model_forward(self, batch):\n"
            f"        return self.model({first})\n"
            "    def loss_forward(self, batch, prediction):\n"
            f"        return self.loss(prediction, {last})"
        )
    return SettingError(f"{who} needs batches of (inputs, targets), but this batch is {outline(batch)}", hint=hint)


def swapped_error(loss: Any) -> SettingError:
    """Return the error for a PyTorch loss that would be called as `loss(batch, prediction)`.

    Such a call may silently return a wrong value.
    """
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return SettingError(
        f"the loss {name} takes (prediction, target), but TrainManager calls loss(batch, prediction)",
        hint="write loss=lambda batch, prediction: your_loss(prediction, batch); for batches of (inputs, targets), use Supervised",
    )


def note_whole_batch(error: Exception, call: str, batch: Any) -> None:
    """Add a note if `model(batch)` or `loss(batch, prediction)` failed because it was called with the whole batch."""
    first, last = _parts(batch)
    is_model = call.startswith("model")
    own = f"model_forward(self, batch): return self.model({first})"
    if not is_model:
        own = f"loss_forward(self, batch, prediction): return self.loss(prediction, {last})"
    pairs = (
        "Supervised(...) in place of TrainManager(...) calls model(inputs) and loss(prediction, targets);\nor " if is_pair(batch) else ""
    )
    note_call(error, call, "the whole batch", batch, f"{pairs}override {own}")


def note_call(error: Exception, call: str, what: str, value: Any, hint: str) -> None:
    """Add a note to `error` if the call failed because its argument, `value`, is a list, a dict or another container."""
    if _is_about(error, value):
        error.add_note(f"{call} was called with {what}, {outline(value)}\n  try     {hint.replace(chr(10), chr(10) + ' ' * 10)}")


def _is_about(error: Exception, value: Any) -> bool:
    """Return whether `value` is the probable cause of `error`.

    Two conditions must hold: the error message mentions the type of the value, and the function that raised the error
    has the value in a local variable. The second condition excludes errors that a model raises after it has unpacked the batch.
    """
    text = str(error)
    is_named = re.search(rf"\b{re.escape(type(value).__name__)}\b", text) is not None or "forward() missing" in text
    if isinstance(value, torch.Tensor) or not is_named:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    local_values = [part for each in frame.f_locals.values() for part in (each, *(each if type(each) is tuple else ()))]
    return any(each is value for each in local_values)


def _parts(batch: Any) -> tuple[str, str]:
    """Return two expressions that probably select the inputs and the targets of a batch, such as `batch[0]` and `batch[1]`."""
    if isinstance(batch, Mapping) and batch:
        keys = list(batch)
        return f"batch[{keys[0]!r}]", f"batch[{keys[-1]!r}]"
    if isinstance(batch, (tuple, list)) and batch:
        return "batch[0]", f"batch[{min(1, len(batch) - 1)}]"
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and (fields := dataclasses.fields(batch)):
        return f"batch.{fields[0].name}", f"batch.{fields[-1].name}"
    return "batch", "batch"
