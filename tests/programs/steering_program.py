"""Trains with extensions that change training or record how to reproduce it, and is killed at the given steps.

Usage: python steering_program.py FOLDER STEP STEP
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from trainmaster import (
    EMA,
    ClipGradients,
    CodeTracker,
    ConstructorArgs,
    Deterministic,
    DivergenceGuard,
    EarlyStopping,
    EnvironmentInfo,
    Extension,
    GradientAccumulation,
    Metrics,
    MixedPrecision,
    Recipe,
    Seed,
    TrainManager,
    tracked,
)


@tracked
class Net(nn.Sequential):
    def __init__(self, width: int = 16) -> None:
        super().__init__(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))

    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


@tracked
class Points(Dataset[Any]):
    def __init__(self, number: int) -> None:
        self.inputs = torch.randn(number, 6, generator=torch.Generator().manual_seed(number))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.inputs[index, :3].argmax()


def loss(batch: Any, prediction: Any) -> Any:
    return cross_entropy(prediction.float(), batch[1])


@tracked
class Accuracy:
    """A metric like those in torchmetrics, whose import would take too long."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right = self.number = 0

    def update(self, prediction: Any, target: Any) -> None:
        self.right += int((prediction.argmax(1) == target).sum())
        self.number += len(target)

    def compute(self) -> float:
        return self.right / self.number

    def state_dict(self) -> dict[str, int]:
        return {"right": self.right, "number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.right, self.number = state["right"], state["number"]


class Kill(Extension):
    """Ends the process in the middle of a group of batches: after the batch that follows an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def post_train_step_batch(self, step_num: int, is_update: bool) -> None:
        if step_num == self.step and not is_update:
            os.kill(os.getpid(), signal.SIGKILL)


def steering_extensions(folder: str) -> list[object]:
    """Create extensions that change training or record how to reproduce it, in an arbitrary order."""
    return [
        ClipGradients(max_norm=0.5),
        EMA(0.9),
        EarlyStopping(monitor="valid/accuracy", patience=2),
        Metrics({"accuracy": Accuracy()}, train=True),
        MixedPrecision(),
        GradientAccumulation(3),
        DivergenceGuard(),
        Seed(5),
        Deterministic(),
        EnvironmentInfo(),
        CodeTracker(os.path.dirname(folder)),
        ConstructorArgs(),
    ]


def training(folder: str, *extra: object, epochs: int = 12) -> TrainManager:
    from torch.utils.data import DataLoader

    from trainmaster import CheckpointSaver

    torch.manual_seed(0)
    return TrainManager(
        Net(),
        loss,
        epochs,
        Recipe(DataLoader, Recipe(Points, 52), batch_size=8, shuffle=True)(),
        {"valid": Recipe(DataLoader, Recipe(Points, 30), batch_size=20)()},
        optimizer=Recipe(torch.optim.AdamW, lr=0.02),
        lr_schedule=Recipe(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=30),
        extensions=[*steering_extensions(folder), ("checkpoint_saver", CheckpointSaver(every_steps=1)), *extra],
        train_dir=folder,
    )


if __name__ == "__main__":
    for step in sys.argv[2:]:  # each in its own process, which shares only the imports with the previous one
        child = os.fork()
        if child == 0:
            training(sys.argv[1], Kill(int(step))).train()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"training was not killed at step {step}: {status}"
