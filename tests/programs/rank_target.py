"""A target for `trainmaster run` with several ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from ranks import At, Rows, accuracy
from torch import nn
from torch.utils.data import DataLoader

from trainmaster import Extension, Manager, Supervised

defaults = {"epochs": 3, "lr": 0.01, "dropout": 0.2, "seed": 1, "at": "", "rank": 0, "step": 0, "wait": "", "sleep": 0.0}


class Wait(Extension):
    """Writes the process ID of each rank after step 2, and slows down every batch, so that the test can act."""

    on_every_rank = True

    def __init__(self, path: str, sleep: float) -> None:
        self.path, self.sleep = path, sleep

    def post_train_step_batch(self, loop: Any, step_num: int) -> None:
        if step_num == 2 and self.path:
            Path(f"{self.path}.{loop.ranks.rank}").write_text(str(os.getpid()))
        time.sleep(self.sleep)


def make_loop(config: Any) -> Supervised:
    layers = [nn.Linear(8, 15), nn.Tanh(), nn.Dropout(config.dropout), nn.Linear(15, 2)]
    extensions: list[Any] = [Wait(config.wait, config.sleep)]
    extensions += [At(config.at, config.rank, config.step)] if config.at else []
    return Supervised(
        nn.Sequential(*layers),
        nn.CrossEntropyLoss(),
        config.epochs,
        DataLoader(Rows(67), batch_size=8, shuffle=True),
        DataLoader(Rows(21), batch_size=8),
        metrics={"accuracy": accuracy},
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=config.lr),
        extensions=extensions,
    )


class OwnEpochs(Manager):
    def train(self) -> None: ...

    def eval(self) -> Any:
        return {"loss": 1.0}
