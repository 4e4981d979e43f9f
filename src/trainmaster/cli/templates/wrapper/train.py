"""Train a model that computes its own loss, with a `ModelWrapper` for its data and metrics.

Start it with `trainmaster run train.py`, or with `python train.py`. Replace the data, the model and the config with your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainmaster import (
    Manager,
    ModelConfig,
    ModelWrapper,
    Observer,
    OptimizerConfig,
    ProtoTrainer,
    RunConfig,
    TrainConfig,
    Writer,
    configclass,
)


@configclass
class NetConfig(ModelConfig):
    """The settings of the model. On the command line, `model_config.width=128` changes a setting."""

    width: int = 64
    num_classes: int = 3


class Net(nn.Module):
    """A model that is called with the tensors of a batch, and returns its outputs and its loss."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, config.width), nn.ReLU(),
            nn.Linear(config.width, config.width), nn.ReLU(),
            nn.Linear(config.width, config.num_classes),
        )  # fmt: skip

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scores = self.layers(inputs)
        return {"prediction": scores.argmax(1)}, nn.functional.cross_entropy(scores, labels)


class WeightNorm(Observer):
    """Logs the norm of all weights once per epoch.

    The name of the method determines when it runs: here, after the stage `train_step_epoch`. Its parameters are fixtures:
    values that trainmaster passes by name. `trainmaster stages train.py` lists all stages and fixtures. An `Observer`
    only reads; inherit from `Extension` to change training.
    """

    def post_train_step_epoch(self, model: nn.Module, writer: Writer, epoch_num: int) -> None:
        norm = nn.utils.parameters_to_vector(model.parameters()).norm()
        writer.add_scalar("weight_norm", norm, epoch_num)


def make_data(num_points: int, seed: int) -> TensorDataset:
    """Return points on three spiral arms. The label is the number of the arm."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num_points,), generator=generator)
    radius = torch.rand(num_points, generator=generator)
    angle = 4 * radius + 2 * math.pi / 3 * labels + 0.1 * torch.randn(num_points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


class NetWrapper(ModelWrapper):
    """The data and the metrics of `Net`. Override `train_step` to update the weights yourself."""

    def make_dataloader_train(self, config: RunConfig) -> DataLoader[Any]:
        return DataLoader(make_data(1000, seed=0), config.train_config.batch_size, shuffle=True)

    def make_dataloader_val(self, config: RunConfig) -> DataLoader[Any]:
        return DataLoader(make_data(500, seed=1), batch_size=500)

    def evaluation_functions(self) -> Mapping[str, Callable[..., Tensor]]:
        return {"accuracy": lambda prediction, labels: (prediction == labels).float().mean()}

    def extensions(self) -> list[Observer]:
        return [WeightNorm()]


def make_trainer(store_dir: str | None = None, *overrides: str) -> ProtoTrainer:
    """Return the trainer for one config. An override is a string such as `"train_config.epochs=5"`."""
    config = RunConfig(
        model_config=NetConfig(),
        train_config=TrainConfig(
            dataset="spirals",
            batch_size=64,
            epochs=20,
            optimizer_config=OptimizerConfig(name="adam", arguments={"lr": 0.01}),
        ),
        random_seed=0,
        experiment_dir=Path(store_dir or "runs"),
    )
    return ProtoTrainer(NetWrapper(Net), config.override(*overrides))


def make_manager(store_dir: str | None = None) -> Manager:
    """Return the manager that `trainmaster run`, `sweep` and `search` use."""
    return make_trainer(store_dir).manager


if __name__ == "__main__":
    trainer = make_trainer()
    trainer.smoke_test()  # a few batches, to find mistakes before a long training run
    print(trainer.launch())
