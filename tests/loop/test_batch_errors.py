"""If a model or a loss fails on a whole batch, the error shows the arguments of the call and suggests what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.loop import TrainManager

INPUTS, TARGETS = torch.randn(8, 3), torch.arange(8) % 2
PAIR = [INPUTS, TARGETS]
SUPERVISED = "  try     Supervised(...) in place of TrainManager(...) calls model(inputs) and loss(prediction, targets);"


def notes_of(model: nn.Module, batch: Any = PAIR, loss: Any = None) -> list[str]:
    """Train until an error is raised, and return its notes, except for the one about its location."""
    manager = TrainManager(model, loss or nn.CrossEntropyLoss(), 1, [batch], device="cpu", progress=False)
    with pytest.raises((TypeError, AttributeError, RuntimeError, ValueError)) as caught:
        manager.train()
    assert caught.value.__notes__[-1].startswith("in stage run > train > train_step_epoch > train_step_batch > ")
    return [line for note in caught.value.__notes__[:-1] for line in note.split("\n")]


class Calls(nn.Module):
    """A model that calls a given function as its `forward`."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self._forward = forward

    def forward(self, batch: Any) -> Any:
        return self._forward(self, batch)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Any, more: Any) -> Any:
        return self.layer(inputs + more)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)),
        nn.Conv1d(3, 2, 1),
        nn.LSTM(3, 2),
        TwoInputs(),
        Calls(lambda self, batch: self.layer(batch.view(8, -1))),
        Calls(lambda self, batch: self.layer(batch / 255)),
        Calls(lambda self, batch: self.layer(batch[:, :3])),
    ],
    ids=["linear", "flatten", "batch norm", "conv", "lstm", "two inputs", "method", "operator", "index"],
)
def test_an_error_on_a_pair_says_what_the_model_got_and_what_to_write(model: nn.Module) -> None:
    assert notes_of(model) == [
        "model(batch) was called with the whole batch, list(Tensor[8, 3], Tensor[8])",
        SUPERVISED,
        "          or override model_forward(self, batch): return self.model(batch[0])",
    ]


def test_an_error_on_other_batches_does_not_suggest_supervised() -> None:
    assert notes_of(nn.Linear(3, 2), {"image": INPUTS, "label": TARGETS}) == [
        "model(batch) was called with the whole batch, dict('image': Tensor[8, 3], 'label': Tensor[8])",
        "  try     override model_forward(self, batch): return self.model(batch['image'])",
    ]

    @dataclass
    class Batch:
        image: torch.Tensor
        label: torch.Tensor

    assert notes_of(nn.Linear(3, 2), Batch(INPUTS, TARGETS)) == [
        "model(batch) was called with the whole batch, Batch(image=Tensor[8, 3], label=Tensor[8])",
        "  try     override model_forward(self, batch): return self.model(batch.image)",
    ]


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.MSELoss(), nn.functional.cross_entropy, torch.dist], ids=["module", "mse", "function", "builtin"]
)
def test_an_error_in_a_torch_loss_says_that_it_got_the_batch(loss: Any) -> None:
    assert notes_of(Calls(lambda self, batch: self.layer(batch[0])), loss=loss) == [
        "loss(batch, prediction) was called with the whole batch, list(Tensor[8, 3], Tensor[8])",
        SUPERVISED,
        "          or override loss_forward(self, batch, prediction): return self.loss(prediction, batch[1])",
    ]


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), nn.functional.mse_loss], ids=["module", "function"])
def test_a_torch_loss_is_never_called_with_swapped_arguments(loss: Any) -> None:
    manager = TrainManager(nn.Linear(3, 3), loss, 1, [INPUTS], device="cpu", progress=False)
    with pytest.raises(SettingError, match=r"takes \(prediction, target\), but TrainManager calls loss\(batch, prediction\)"):
        manager.train()


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Calls(lambda self, batch: self.layer(None)), PAIR),
        (Calls(lambda self, batch: self.layer([batch[0]])), PAIR),
        (Calls(lambda self, batch: self.layer(batch[0]).no_such_method()), PAIR),
        (Calls(lambda self, batch: self.layer(batch[0][:, :2])), PAIR),
        (nn.Linear(4, 2), INPUTS),
        (Calls(lambda self, batch: self.layer(batch).foo), INPUTS),
    ],
    ids=["none", "another list", "attribute of a tensor", "shape", "shape of a tensor", "attribute"],
)
def test_an_error_that_is_not_about_the_batch_has_no_such_note(model: nn.Module, batch: Any) -> None:
    assert notes_of(model, batch) == []


def test_an_error_in_an_overridden_model_forward_gets_no_note() -> None:
    class Loop(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            return self.model(batch)

    with pytest.raises(TypeError) as caught:
        Loop(nn.Linear(3, 2), nn.CrossEntropyLoss(), 1, [PAIR], device="cpu", progress=False).train()
    assert len(caught.value.__notes__) == 1


def test_a_trainmaster_error_in_a_model_is_not_changed() -> None:
    def refuse(self: Any, batch: Any) -> Any:
        raise SettingError("no list")

    with pytest.raises(SettingError) as caught:
        TrainManager(Calls(refuse), nn.CrossEntropyLoss(), 1, [PAIR], device="cpu", progress=False).train()
    assert len(caught.value.__notes__) == 1
