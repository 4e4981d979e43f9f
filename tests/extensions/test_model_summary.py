"""ModelSummary shows the layers of a model in a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import LoopComponent, TrainTestLoop
from trainmaster.errors import SettingError
from trainmaster.extensions.model_summary import ModelSummary, layers_of, table_of
from trainmaster.testing import ExtensionContract


class TestContract(ExtensionContract):
    unsaved_attributes = ("_shapes",)  # those of the first batch of the process

    def make(self) -> object:
        return ModelSummary(output=None)


def test_the_table_has_shapes_and_parameters_of_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    ExtensionContract().loop(ModelSummary()).train()
    assert capsys.readouterr().out.splitlines() == [
        "_Model, 163 parameters",
        "layer   kind        output   parameters",
        "layers  Sequential  20 x 3          163",
        "  0     Linear      20 x 16         112",
        "  1     ReLU        20 x 16           0",
        "  2     Dropout     20 x 16           0",
        "  3     Linear      20 x 3           51",
    ]


def test_frozen_parameters_have_their_own_column() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    assert table_of(model, list(layers_of(model, 1))) == [
        "Sequential, 13 parameters, 4 trainable",
        "layer  kind    output  parameters  trainable",
        "0      Linear                   9          0",
        "1      Linear                   4          4",
    ]


def test_a_parameter_that_two_layers_share_is_counted_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

    assert [each.num_parameters for each in layers_of(Tied(), 1)] == [16, 0]


def test_its_hooks_are_removed_from_the_model_after_an_error() -> None:
    class Broken(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            raise RuntimeError("broken")

    manager = ExtensionContract().loop(ModelSummary(output=None))
    manager.model.layers[3] = Broken(16, 3)
    with pytest.raises(RuntimeError, match="broken"):
        manager.train()
    assert not any(module._forward_hooks for module in manager.model.modules())


def test_it_works_in_a_train_test_loop() -> None:
    class Work(LoopComponent):
        def on_forward_pass(self, loop: Any) -> None:
            loop.loss = loop.model(loop.batch).sum()

    summary = ModelSummary(output=None)
    TrainTestLoop(nn.Sequential(nn.Linear(2, 1)), [Work(), summary], [torch.ones(1, 2)] * 3, []).train(1)
    assert [(each.name, each.output) for each in summary.layers()] == [("0", "1 x 1")]


@pytest.mark.parametrize("depth", [0, True, 1.5])
def test_depth_must_be_a_positive_integer(depth: Any) -> None:
    with pytest.raises(SettingError, match="`depth` must be a whole number of at least 1"):
        ModelSummary(depth)
