"""Train a classifier on points from three spirals.

Start it with `trainmaster run train.py`. Replace the data, the model and the config with your own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainmaster import ConfigBase, Observer, Replicate, Supervised, Writer, configclass


@configclass
class Train(ConfigBase):
    """Everything that a run depends on. Each config is trained once. A config with different values is a different run.

    On the command line, `lr=0.03` changes a field. A misspelled name or a wrong type raises an error before training.
    """

    lr: float = 0.01
    width: int = 64
    batch_size: int = 64
    epochs: int = 20
    seed: Replicate[int] = 0  # runs that differ only in the seed are replicates: `trainmaster ls --group` shows their mean
    start_from: str | None = None  # the checkpoint whose weights a run starts with: `trainmaster run train.py --from KEY@best`


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
    """Return points on three spiral arms. The target is the number of the arm."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (num_points,), generator=generator)
    radius = torch.rand(num_points, generator=generator)
    angle = 4 * radius + 2 * math.pi / 3 * targets + 0.1 * torch.randn(num_points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), targets)


def make_model(config: Train) -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, config.width), nn.ReLU(),
        nn.Linear(config.width, config.width), nn.ReLU(),
        nn.Linear(config.width, 3),
    )  # fmt: skip


def accuracy(prediction: Tensor, targets: Tensor) -> Tensor:
    """Return the accuracy. The loop calls this function once per evaluation, with the predictions and targets of the whole set."""
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config: Train) -> Supervised:
    """Build the loop that trains one config. `trainmaster run`, `sweep` and `search` call this function.

    trainmaster has already set the random seeds. It adds checkpoints and exact resuming, and records the run.
    """
    model = make_model(config)
    return Supervised(
        model,
        nn.CrossEntropyLoss(),
        epochs=config.epochs,
        train_data=DataLoader(make_data(1000, seed=0), config.batch_size, shuffle=True),
        eval_data=DataLoader(make_data(500, seed=1), batch_size=500),
        optimizer=torch.optim.Adam(model.parameters(), lr=config.lr),
        metrics={"accuracy": accuracy},
        extensions=[WeightNorm()],
    )
