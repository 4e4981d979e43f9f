"""A small training with every extension that has a state, to be killed and taken up: `python all_program.py FOLDER [STEP]`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import (
    ActivationStats,
    Avg,
    CSVLog,
    Extension,
    FailureCapsule,
    GradCoeffRMSVis,
    GradNormVis,
    HookTimes,
    LeakageCheck,
    LearningRate,
    LossPlot,
    ModelSummary,
    NonFinite,
    Plot,
    Progress,
    RunReport,
    SampleLoss,
    SanityCheck,
    TensorBoard,
    TrainManager,
    UpdateRatio,
)


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


class Kill(Extension):
    def __init__(self, step: int) -> None:
        self.step = step

    def post_train_step_batch(self, step_num: int) -> None:
        if step_num == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def silent(text: str) -> None: ...


def every_extension() -> list[object]:
    """One of each, as a user would make it, but for what they print."""
    return [
        RunReport(say=silent),
        Progress(say=silent),
        ModelSummary(say=None),
        HookTimes(say=None),
        SanityCheck(checks=["parameters"]),
        LeakageCheck(),
        FailureCapsule(),
        NonFinite("skip"),
        LossPlot(),
        LossPlot("batches", smoothing=0.5),
        LossPlot("samples"),
        SampleLoss(lambda batch, prediction: cross_entropy(prediction, batch[1], reduction="none")),
        GradNormVis(),
        GradCoeffRMSVis(every=3),
        UpdateRatio(every=2),
        ActivationStats(every=2),
        LearningRate(),
        Plot("loss", over="batches"),
        Avg("loss"),
        CSVLog(),
        TensorBoard(),
    ]


def training(folder: str | None, *extensions: object) -> TrainManager:
    torch.manual_seed(0)
    inputs = torch.randn(48, 6)
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    model = Net(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    return TrainManager(
        model,
        lambda batch, prediction: cross_entropy(prediction, batch[1]),
        4,
        DataLoader(data, 8, shuffle=True),
        {"valid": DataLoader(data, 20)},
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5),
        extensions=[*extensions],
        train_dir=folder,
    )


if __name__ == "__main__":
    training(sys.argv[1], *every_extension(), Kill(int(sys.argv[2]))).train()
