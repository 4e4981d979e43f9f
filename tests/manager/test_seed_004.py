"""The example program of an earlier project (seed 004) trains one config, a batch and a sweep, and fetches a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import Config, Manager

DEFAULTS = """\
arch: small
lr: 0.05
optim:
  momentum: 0.9
  nesterov: false
seed: 0
"""
WIDTHS = {"small": 3, "large": 6}


class Regression(Manager):
    """Trains a network to add its inputs. All random numbers come from generators that the manager seeds."""

    model: nn.Module

    def get_config(self, config: Any = None) -> Any:
        config = super().get_config(config)
        if config.arch not in WIDTHS:
            raise ValueError(f"arch {config.arch!r}: choose one of {', '.join(WIDTHS)}")
        return config

    def setup(self, config: Any) -> None:
        super().setup(config)
        width = WIDTHS[self.config.arch]
        self.model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.config.lr, **self.config.optim)
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(48, 4, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True)

    def train(self) -> None:
        self.model.train()
        for rows in torch.randperm(48).split(16):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(self.inputs[rows]), self.targets[rows]).backward()
            self.optimizer.step()

    def eval(self) -> dict[str, Any]:
        self.model.eval()
        with torch.no_grad():
            return {"loss_test": nn.functional.mse_loss(self.model(self.inputs), self.targets)}

    def save_ckpt(self) -> None:
        self.ckpt |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.model.load_state_dict(self.ckpt["model"])
        self.optimizer.load_state_dict(self.ckpt["optimizer"])


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    path = tmp_path / "defaults.yaml"
    path.write_text(DEFAULTS)
    return path


@pytest.fixture
def manager(store_dir: Path, defaults: Path) -> Regression:
    return Regression(store_dir, defaults, verbose=False)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


# Initialization (J4)


def test_a_new_manager_creates_four_folders_in_the_store(manager: Regression, store_dir: Path) -> None:
    assert {"configs", "stats", "ckpts", "previews"} <= {path.name for path in store_dir.iterdir() if path.is_dir()}


def test_defaults_can_be_a_yaml_file_as_a_path_or_as_text(store_dir: Path, defaults: Path) -> None:
    for given in (defaults, str(defaults)):
        assert Regression(store_dir, given, verbose=False).get_config({"lr": 0.1}) == {
            "arch": "small", "lr": 0.1, "optim": {"momentum": 0.9, "nesterov": False}, "seed": 0,
        }  # fmt: skip


def test_the_store_directory_can_be_a_string(store_dir: Path, defaults: Path, manager: Regression) -> None:
    manager.process({}, num_epochs=1)
    again = Regression(str(store_dir), str(defaults), verbose=False)
    assert again.stats[manager.key]["epoch"] == 1


# Train a model


def test_one_call_trains_one_config(manager: Regression) -> None:
    manager.process({"arch": "large"}, num_epochs=6)
    key = manager.configs.get_key(manager.get_config({"arch": "large"}))
    assert key is not None
    assert len(key) == 8  # J5
    assert manager.stats[key]["epoch"] == 6
    records = manager.ckpts[key]["eval_records"]
    assert list(records) == [0, 1, 2, 3, 4, 5, 6]
    assert records[6]["loss_test"] < records[0]["loss_test"]
    assert manager.previews[key] == records[6]


def test_training_for_more_epochs_later_gives_the_same_bits_as_training_at_once(
    manager: Regression, tmp_path: Path, defaults: Path
) -> None:
    manager.process({"arch": "large"}, num_epochs=2)
    later = Regression(manager.store.root, defaults, verbose=False)
    later.process({"arch": "large"}, num_epochs=5)
    at_once = Regression(tmp_path / "other", defaults, verbose=False)
    at_once.process({"arch": "large"}, num_epochs=5)
    assert torch.equal(weights(later.model), weights(at_once.model))
    assert later.ckpt["eval_records"] == at_once.ckpt["eval_records"]


def test_get_config_can_refuse_a_config_before_anything_is_stored(manager: Regression) -> None:
    with pytest.raises(ValueError, match="arch 'huge': choose one of small, large"):
        manager.process({"arch": "huge"}, num_epochs=1)
    assert len(manager.configs) == 0


# Train a batch of models (J12, J16)


def test_a_batch_trains_count_runs(manager: Regression) -> None:
    configs = [{"lr": lr} for lr in (0.1, 0.05, 0.01)]
    manager.batch(configs, num_epochs=1, count=2)
    assert len(list(manager.completed(min_epoch=1))) == 2
    manager.batch(configs, num_epochs=1, count=2)
    assert len(list(manager.completed(min_epoch=1))) == 3


def test_a_sweep_trains_every_combination(manager: Regression) -> None:
    manager.sweep({"arch": ["small", "large"], "lr": [0.01, 0.001]}, num_epochs=1)
    found = {(config.arch, config.lr) for _, config in manager.completed(min_epoch=1)}
    assert found == {("small", 0.01), ("small", 0.001), ("large", 0.01), ("large", 0.001)}


def test_the_best_run_of_a_sweep_is_found_by_its_preview(manager: Regression) -> None:
    manager.sweep({"lr": [0.05, 0.000001]}, num_epochs=3)
    key = manager.best_work()
    assert key is not None
    assert manager.configs[key].lr == 0.05


# Fetch a trained model (J23)


@pytest.fixture
def two_trained(manager: Regression) -> tuple[Regression, str, torch.Tensor]:
    """Train two runs. Return the manager, and the key and weights of the run that is not its current one."""
    manager.process({"arch": "large"}, num_epochs=2)
    key, wanted = manager.key, weights(manager.model).clone()
    manager.process({"arch": "small"}, num_epochs=3)
    return manager, key, wanted


def test_a_model_is_loaded_by_its_key_with_setup_and_load_ckpt(two_trained: tuple[Regression, str, torch.Tensor]) -> None:
    manager, key, wanted = two_trained
    config = manager.configs[key]
    manager.setup(config)
    manager.load_ckpt()
    model = manager.model
    assert torch.equal(weights(model), wanted)
    assert (manager.key, manager.epoch, manager.config.arch) == (key, 2, "large")


def test_a_model_is_loaded_by_its_key_with_fetch(two_trained: tuple[Regression, str, torch.Tensor]) -> None:
    manager, key, wanted = two_trained
    model = manager.fetch(key).model
    assert torch.equal(weights(model), wanted)
    assert (manager.key, manager.epoch, manager.config.arch) == (key, 2, "large")


def test_another_process_fetches_the_same_model(two_trained: tuple[Regression, str, torch.Tensor], defaults: Path) -> None:
    manager, key, wanted = two_trained
    torch.manual_seed(5)
    assert torch.equal(weights(Regression(manager.store.root, defaults, verbose=False).fetch(key).model), wanted)


def test_a_stored_config_is_complete(two_trained: tuple[Regression, str, torch.Tensor]) -> None:
    manager, key, _ = two_trained
    stored = manager.configs[key]
    assert isinstance(stored, Config)
    assert stored == {"arch": "large", "lr": 0.05, "optim": {"momentum": 0.9, "nesterov": False}, "seed": 0}
