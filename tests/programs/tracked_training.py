"""A training run with a `Tracker` that logs each batch; it may kill itself.

Usage: tracked_training.py SERVICE FOLDER OPTIONS [KILL_AT]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmaster import CheckpointSaver, Extension, Tracker, TrainManager

INPUTS = torch.linspace(-1, 1, 48).unsqueeze(1)
BATCHES = list(zip(INPUTS.split(8), (INPUTS**2).split(8), strict=True))


class Net(nn.Sequential):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch[0])


class LogBatch(Extension):
    def post_train_step_batch(self, writer: Any, loss: torch.Tensor, step_num: int) -> None:
        writer.add_scalar("batch/loss", loss, step_num)


class KillAt(Extension):
    """Kills the process, but first gives the service time to receive what was logged."""

    def __init__(self, step: int, is_sent: Any) -> None:
        self.step, self.is_sent = step, is_sent

    def post_train_step_batch(self, step_num: int) -> None:
        if step_num == self.step:
            self.is_sent()
            os.kill(os.getpid(), signal.SIGKILL)


def make(*extensions: object, epochs: int = 3, **settings: Any) -> TrainManager:
    torch.manual_seed(0)
    model = Net(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    return TrainManager(
        model,
        lambda batch, prediction: (prediction - batch[1]).pow(2).mean(),
        epochs,
        BATCHES,
        {"valid": BATCHES},
        extensions=extensions,
        progress=False,
        **settings,
    )


def wait_until_sent(tracker: Tracker, num_rows: int) -> None:
    deadline = time.monotonic() + 60
    while tracker.num_sent < num_rows and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    service, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    tracker = Tracker(service, "sine", **options)
    extensions: list[object] = [LogBatch(), tracker, CheckpointSaver(in_background=False)]
    if len(sys.argv) > 4:
        extensions.append(KillAt(int(sys.argv[4]), lambda: wait_until_sent(tracker, 20)))
    make(*extensions, train_dir=folder).train()
    print(tracker.num_sent)
