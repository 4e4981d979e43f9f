"""A small training run with the extensions that do not change its results, which can be killed and resumed.

Usage: python all_program.py FOLDER [STEP]
"""

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
    EMA,
    ActivationStats,
    Avg,
    CheckpointLoader,
    CheckpointSaver,
    ClipGradients,
    CodeTracker,
    Compile,
    ConstructorArgs,
    CSVLogger,
    Deterministic,
    DivergenceGuard,
    EarlyStopping,
    EnvironmentInfo,
    Extension,
    FailureCapsule,
    GradCoeffRMSVis,
    GradientAccumulation,
    GradNormVis,
    HookProfiler,
    LeakageCheck,
    LearningRateMonitor,
    LossPlot,
    Manager,
    Metrics,
    MixedPrecision,
    ModelSummary,
    NaNGuard,
    Plot,
    Progress,
    RunReport,
    SampleLoss,
    SanityCheck,
    Seed,
    TensorBoard,
    Tracker,
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


def loss_of_each(batch: Any, prediction: Any) -> Any:
    return cross_entropy(prediction, batch[1], reduction="none")


class Accuracy:
    """A metric like those in torchmetrics."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right = self.number = 0

    def update(self, prediction: Any, targets: Any) -> None:
        self.right += int((prediction.argmax(1) == targets).sum())
        self.number += len(targets)

    def compute(self) -> float:
        return self.right / self.number


def one_of_each_kind() -> dict[str, Any]:
    """Return one instance of each trainmaster extension, by class name."""
    found: list[object] = [
        *passive_extensions(),
        CheckpointLoader(),
        CheckpointSaver(),
        ClipGradients(1.0),
        CodeTracker(),
        Compile(disable=True),
        ConstructorArgs(),
        Deterministic(),
        DivergenceGuard(),
        EMA(),
        EarlyStopping(),
        EnvironmentInfo(),
        GradientAccumulation(2),
        Metrics(Accuracy()),
        MixedPrecision(),
        Seed(0),
        Tracker("trackio", project="all"),
    ]
    return {type(each).__name__: each for each in found}


class Small(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        return training(None)


def passive_extensions() -> list[object]:
    """Create the extensions that do not change the results of this training run, with their output turned off.

    `one_of_each_kind` adds the others. `steering_program.py` trains with most of those.
    """
    return [
        RunReport(output=silent),
        Progress(output=silent),
        ModelSummary(output=None),
        HookProfiler(output=None),
        SanityCheck(checks=["parameters"]),
        LeakageCheck(),
        FailureCapsule(),
        NaNGuard("skip"),
        LossPlot(),
        LossPlot("batches", smoothing=0.5),
        LossPlot("samples"),
        SampleLoss(loss_of_each),
        GradNormVis(),
        GradCoeffRMSVis(every=3),
        UpdateRatio(every=2),
        ActivationStats(every=2),
        LearningRateMonitor(),
        Plot("loss", over="batches"),
        Avg("loss"),
        CSVLogger(),
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
    training(sys.argv[1], *passive_extensions(), Kill(int(sys.argv[2]))).train()
