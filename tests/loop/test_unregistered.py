"""Training warns about layers in plain containers, which are neither trained nor saved."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Supervised
from trainmaster.errors import SettingError
from trainmaster.loop.unregistered import find_unregistered


class Body(nn.Module):
    """A model with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.last = nn.Linear(2, 1)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(inputs)
        return out


def train(model: nn.Module, kind: type[Supervised] = Supervised, **more: Any) -> Supervised:
    data = [(torch.ones(4, 2), torch.ones(4, 1))]
    loop = kind(model, nn.MSELoss(), epochs=1, train_data=data, device="cpu", progress=False, **more)
    loop.train()
    return loop


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([nn.Linear(2, 2)], "`hidden` (a list with 2 parameters)"),
        ((nn.Linear(2, 2), nn.Linear(2, 2)), "`hidden` (a tuple with 4 parameters)"),
        ({"a": nn.Parameter(torch.ones(1))}, "`hidden` (a dict with 1 parameter)"),
        ([{"a": (nn.Linear(2, 2, bias=False),)}], "`hidden` (a list with 1 parameter)"),
    ],
    ids=["list", "tuple", "dict of parameters", "nested"],
)
def test_parameters_in_plain_containers_are_found(value: Any, found: str) -> None:
    assert find_unregistered(Body(hidden=value)) == [found]


def test_the_name_of_an_attribute_of_a_submodule_is_dotted() -> None:
    model = nn.Sequential(Body(), Body(layers=[nn.Linear(2, 2)]))
    assert find_unregistered(model) == ["`1.layers` (a list with 2 parameters)"]


def test_containers_of_registered_frozen_or_other_values_are_not_found() -> None:
    layer, tied = nn.Linear(2, 2), nn.LSTM(2, 2)
    endless: list[Any] = [1]
    endless.append(endless)
    words = {str(number): number for number in range(50_000)}
    frozen = nn.Linear(2, 2).requires_grad_(False)
    model = Body(layer=layer, layers=[layer], tied=tied, teacher=[frozen], words=words, endless=endless, names=("a", None))
    model.parent = [model]  # type: ignore[assignment]  # a way to refer to a parent without a cycle of modules
    assert find_unregistered(model) == []


def test_training_warns_and_names_the_remedy() -> None:
    with pytest.warns(
        UserWarning, match=r"neither trained nor saved: `layers` \(a list with 2 parameters\); keep modules in an nn.ModuleList"
    ):
        train(Body(layers=[nn.Linear(2, 2)]))


def test_an_evaluation_does_not_warn() -> None:
    model, data = Body(layers=[nn.Linear(2, 2)]), [(torch.ones(4, 2), torch.ones(4, 1))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Supervised(model, nn.MSELoss(), epochs=1, train_data=data, eval_data=data, device="cpu", progress=False).eval()


def test_a_module_that_the_loop_has_may_be_in_a_list() -> None:
    class TwoModels(Supervised):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.critic = other

    other = nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(Body(others=[other]), TwoModels)


def test_a_model_whose_layers_are_all_hidden_is_an_error_that_names_them() -> None:
    model = Body(layers=[nn.Linear(2, 2)])
    del model.last
    with pytest.raises(
        SettingError, match=r"no parameter to train\n  why     not in model.parameters\(\): `layers` \(a list with 2 parameters\)\n"
    ):
        train(model)
