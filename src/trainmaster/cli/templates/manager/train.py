"""Train a classifier with epochs that you write yourself.

Start it with `trainmaster run train.py`. Replace the data, the model and the config with your own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from trainmaster import ConfigBase, Extension, Manager, Replicate, configclass


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


class BestAccuracy(Extension):
    """Remembers the best accuracy so far, and adds it to the metrics that `trainmaster show` prints.

    The name of the method determines when it runs: here, after the stage `work_eval`. Its parameters are fixtures: values
    that trainmaster passes by name. `trainmaster stages train.py` lists all stages and fixtures.
    """

    def post_work_eval(self, preview: dict[str, float], ckpt: dict[str, float]) -> None:
        ckpt["best"] = max(ckpt.get("best", 0.0), preview["accuracy"])  # saved and restored with the run
        preview["best_accuracy"] = ckpt["best"]


def make_data(num_points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on three spiral arms. The target is the number of the arm."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (num_points,), generator=generator)
    radius = torch.rand(num_points, generator=generator)
    angle = 4 * radius + 2 * math.pi / 3 * targets + 0.1 * torch.randn(num_points, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), targets


class Spirals(Manager):
    """Trains one config after another. trainmaster sets the random seeds before `setup`, and saves a checkpoint after each epoch."""

    defaults = Train
    monitor = "loss_test"  # decides which checkpoint and which run are the best; lower is better, as the name implies
    extensions: Any = [BestAccuracy()]
    config: Train

    def setup(self, config: Train) -> None:
        """Build everything that is trained."""
        super().setup(config)
        self.train_data, self.valid_data = make_data(1000, seed=0), make_data(500, seed=1)
        self.model = nn.Sequential(
            nn.Linear(2, config.width), nn.ReLU(),
            nn.Linear(config.width, config.width), nn.ReLU(),
            nn.Linear(config.width, 3),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)

    def train(self) -> None:
        """Train one epoch; `self.epoch` is its number."""
        inputs, targets = self.train_data
        self.model.train()
        for chosen in torch.randperm(len(inputs)).split(self.config.batch_size):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs[chosen]), targets[chosen]).backward()
            self.optimizer.step()

    def eval(self) -> dict[str, float]:
        """Return the metrics of this epoch."""
        inputs, targets = self.valid_data
        self.model.eval()
        with torch.no_grad():
            scores = self.model(inputs)
        accuracy = (scores.argmax(1) == targets).float().mean()
        return {"loss_test": float(nn.functional.cross_entropy(scores, targets)), "accuracy": float(accuracy)}

    def save_ckpt(self) -> None:
        """Put everything that training changes into the checkpoint. trainmaster also saves the states of the random number generators."""
        self.ckpt["model"] = self.model.state_dict()
        self.ckpt["optimizer"] = self.optimizer.state_dict()
        super().save_ckpt()

    def load_ckpt(self) -> None:
        super().load_ckpt()
        self.model.load_state_dict(self.ckpt["model"])
        self.optimizer.load_state_dict(self.ckpt["optimizer"])
