"""Train a classifier with a `TrainTestLoop`: a minimal loop whose components do all the work.

Start it with `trainmaster run train.py`. Replace the data, the model and the config with your own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainmaster import ConfigBase, LoopComponent, Manager, Replicate, TrainTestLoop, configclass


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


class Classify(LoopComponent):
    """A training step, divided into callbacks. Components share values by setting attributes of the loop."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def on_grads_reset(self, loop: Any) -> None:
        self.optimizer.zero_grad()

    def on_forward_pass(self, loop: Any) -> None:
        inputs, _ = loop.batch
        loop.prediction = loop.model(inputs)

    def on_loss_compute(self, loop: Any) -> None:
        _, targets = loop.batch
        loop.loss = nn.functional.cross_entropy(loop.prediction, targets)

    def on_backward_pass(self, loop: Any) -> None:
        loop.loss.backward()

    def on_optim_step(self, loop: Any) -> None:
        self.optimizer.step()


class Accuracy(LoopComponent):
    """An example of a custom component. It computes the mean loss and the accuracy of the last validation or test pass."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []

    def on_epoch_begin(self, loop: Any) -> None:
        self._losses, self._hits = [], []

    def on_batch_end(self, loop: Any) -> None:
        if not loop.is_training:
            _, targets = loop.batch
            self._losses.append(loop.loss.detach().expand(len(targets)))  # one per sample, because the last batch may be smaller
            self._hits.append(loop.prediction.argmax(1) == targets)

    def on_epoch_end(self, loop: Any) -> None:
        if not loop.is_training:
            self.values = {"loss_test": float(torch.cat(self._losses).mean()), "accuracy": float(torch.cat(self._hits).float().mean())}


def make_data(num_points: int, seed: int) -> TensorDataset:
    """Return points on three spiral arms. The target is the number of the arm."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (num_points,), generator=generator)
    radius = torch.rand(num_points, generator=generator)
    angle = 4 * radius + 2 * math.pi / 3 * targets + 0.1 * torch.randn(num_points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), targets)


class Spirals(Manager):
    """Trains one config after another and keeps the results. It calls `setup` once per config, and `train` and `eval` once per epoch."""

    defaults = Train

    def setup(self, config: Train) -> None:
        """Build everything that is trained. trainmaster has already set the random seeds."""
        super().setup(config)
        self.model = nn.Sequential(
            nn.Linear(2, config.width), nn.ReLU(),
            nn.Linear(config.width, config.width), nn.ReLU(),
            nn.Linear(config.width, 3),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.accuracy = Accuracy()
        train_data = DataLoader(make_data(1000, seed=0), config.batch_size, shuffle=True)
        self.valid_data = DataLoader(make_data(500, seed=1), batch_size=200)
        self.train_test_loop = TrainTestLoop(self.model, [Classify(self.optimizer), self.accuracy], train_data, self.valid_data)

    def train(self) -> None:
        """Train one epoch. The loop also makes a pass over the validation data."""
        self.train_test_loop.train(n_epochs=1)

    def eval(self) -> dict[str, float]:
        """Return the metrics of this epoch. The run with the lowest `loss_test` is the best one."""
        if not self.accuracy.values:  # before the first epoch
            self.train_test_loop.test(self.valid_data)
        return self.accuracy.values

    def save_ckpt(self) -> None:
        """Put everything that training changes into the checkpoint. trainmaster also saves the states of the random number generators."""
        self.ckpt["model"] = self.model.state_dict()
        self.ckpt["optimizer"] = self.optimizer.state_dict()
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.model.load_state_dict(self.ckpt["model"])
        self.optimizer.load_state_dict(self.ckpt["optimizer"])
