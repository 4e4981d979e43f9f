"""The seed determines all random numbers of a new training run, but not those of a resumed one."""

from __future__ import annotations

import pickle
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.errors import SettingError
from trainmaster.extensions.seed import Seed
from trainmaster.loop import TrainManager
from trainmaster.loop.rng import get_rng, seed_rng
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class TestSeed(ExtensionContract):
    def make(self) -> object:
        return Seed(7)


class Net(nn.Module):
    """A model with its own weight initialization, dropout, and noise from all three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def initialize_params(self) -> None:
        nn.init.normal_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        noise = (random.random() + np.random.rand()) if self.training else 0.0
        return nn.functional.dropout(self.layer(batch[0]), 0.5, self.training) + noise


def manager(*extensions: object, drawn: int = 0, epochs: int = 2, **settings: Any) -> TrainManager:
    seed_rng(1000 + drawn)
    data = TensorDataset(torch.arange(36.0).reshape(12, 3) / 36)
    return TrainManager(
        Net(),
        lambda _, out: out.pow(2).mean(),
        epochs,
        DataLoader(data, 4, shuffle=True),
        {"valid": DataLoader(data, 5)},
        extensions=list(extensions),
        device="cpu",
        **settings,
    )


def weights(tm: TrainManager) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tm.model.state_dict().items()}


def trained(*extensions: object, drawn: int = 0, **settings: Any) -> dict[str, torch.Tensor]:
    tm = manager(*extensions, drawn=drawn, **settings)
    tm.train()
    return weights(tm)


def test_two_training_runs_are_equal_no_matter_what_was_drawn_before() -> None:
    assert same_bits(trained(Seed(7), drawn=1), trained(Seed(7), drawn=2))
    assert not same_bits(trained(drawn=1), trained(drawn=2))
    assert not same_bits(trained(Seed(7)), trained(Seed(8)))


def test_its_position_in_the_list_makes_no_difference() -> None:
    class Draws(Extension):
        def pre_run(self) -> None:
            torch.rand(1)

        def pre_train(self) -> None:
            np.random.rand()

    found = [
        trained(*extensions, drawn=number)
        for number, extensions in enumerate(permutations([Seed(7), Draws(), ("other", Draws())]))
    ]  # fmt: skip
    assert all(same_bits(found[0], other) for other in found)


def test_all_three_kinds_of_random_numbers_are_seeded() -> None:
    class Look(Extension):
        def post_load_checkpoint(self) -> None:
            self.rng = get_rng()

    look = Look()
    tm = manager(Seed(7), drawn=1)
    tm.add_extension("look", look, at_start=True)  # runs before the weights are initialized
    tm.train()
    seed_rng(7)
    assert same_bits(look.rng, get_rng())


@pytest.mark.parametrize("step", [0, 1, 3, 4])
def test_resumed_training_is_not_seeded_again(step: int) -> None:
    class Capture(Extension):
        state: Any = None

        def post_eval(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step == 0:
                self.state = train_manager.capture()

        def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
            if step_num == step:
                self.state = train_manager.capture()

    whole = manager(capture := Capture(), drawn=1)
    whole.train()
    again = manager(Seed(7), Capture(), drawn=2)
    again.restore(capture.state)
    again.train()
    assert same_bits(weights(whole), weights(again))


def test_two_calls_of_train_give_the_same_result_as_one() -> None:
    tm = manager(Seed(7), epochs=1)
    tm.train()
    tm.epochs = 2
    tm.train()
    assert same_bits(weights(tm), trained(Seed(7)))


def test_training_that_resumes_from_a_folder_is_not_seeded_again(tmp_path: Path) -> None:
    trained(Seed(7), epochs=1, train_dir=tmp_path)
    assert same_bits(trained(Seed(7), drawn=5, train_dir=tmp_path), trained(Seed(7)))


def test_a_standalone_evaluation_is_not_seeded() -> None:
    def evaluated(*extensions: object) -> Any:
        tm = manager(*extensions)
        tm.eval()
        return weights(tm), get_rng()

    assert same_bits(evaluated(Seed(7)), evaluated())


def test_training_after_an_evaluation_is_seeded() -> None:
    found = []
    for drawn in (1, 2):
        tm = manager(Seed(7), drawn=drawn)
        tm.model.initialize_params = None  # type: ignore[union-attr, assignment]
        nn.init.ones_(tm.model.layer.weight)  # type: ignore[union-attr, arg-type]
        nn.init.ones_(tm.model.layer.bias)  # type: ignore[union-attr, arg-type]
        tm.eval()
        tm.train()
        found.append(weights(tm))
    assert same_bits(*found)


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Seed(7))).seed == 7


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0, "7", None])
def test_invalid_seeds_are_refused_at_construction(seed: Any) -> None:
    with pytest.raises(SettingError, match=r"^`seed` must be a whole number from 0 to 2\*\*63 - 1, not "):
        Seed(seed)
