"""Measures the overhead of the loss plot, the gradient plots, the progress bar and the CSV log, alone and together.

    python benchmarks/extensions.py [--rounds 20] [--only tiny|paced|10ms]

There are three loops: the tiny model of `step_overhead.py` (32-32-4, batches of 16, epochs of 1,000 steps); a small
convolutional net whose step takes about 10 ms (epochs of 100 steps); and an MLP that computes until 9 ms have passed,
because on a busy machine, the time that a convolution takes varies by more than the overhead of extensions.

The benchmark alternates between short training runs without extensions and with each set of extensions. It records the
CPU time of all threads for every window of a few steps, and for the rest of each epoch: before its first step and after
its last one. On a busy machine, some windows of 50 ms are undisturbed, but a whole training run never is. So the
minimum and the lower quintile of all windows are compared with those of the bare loop; the time outside the steps is
distributed over the steps of the epoch. The bare loop runs twice: its ratio to itself is the error bar. Figures drawn
at the end of training are not measured; during training, drawing takes at most 2 % of the time.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from trainmaster import Progress, TrainManager
from trainmaster.extensions.csv_logger import CSVLogger
from trainmaster.extensions.gradients import GradNormVis
from trainmaster.extensions.loss_plot import LossPlot
from trainmaster.stages import Extension

EPOCHS = 2
Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Loop(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def loss(batch: Any, prediction: Any) -> Any:
    return nn.functional.cross_entropy(prediction, batch[1])


class Clock(Extension):
    """Records CPU time.

    This extension comes first, so that it also measures the work of other extensions at the start and the end of an epoch.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.windows: list[float] = []
        """The CPU time of each window of steps."""
        self.around: list[float] = []
        """The CPU time of each epoch before its first step and after its last one."""
        self._began = self._last = self._ended = 0.0

    def pre_train_step_epoch(self) -> None:
        self._close()
        self._began = time.process_time()

    def pre_train_step_batch(self, batch_num: int) -> None:
        if batch_num % self.window == 0:
            now = time.process_time()
            if batch_num:
                self.windows.append(now - self._last)
            else:
                self.around.append(now - self._began)
            self._last = time.process_time()

    def post_train_step_epoch(self) -> None:
        self._ended = time.process_time()

    def post_train(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._ended:
            self.around[-1] += time.process_time() - self._ended
            self._ended = 0.0


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def tiny_batches() -> Batches:
    torch.manual_seed(0)
    return [(torch.randn(16, 32), torch.randint(0, 4, (16,))) for _ in range(1000)]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


def image_batches() -> Batches:
    torch.manual_seed(0)
    return [(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))) for _ in range(100)]


class Paced(nn.Module):
    """An MLP whose forward pass always takes 9 ms of CPU time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, inputs: torch.Tensor) -> Any:
        end = time.thread_time() + 0.009
        prediction = self.layers(inputs)
        while time.thread_time() < end:
            pass
        return prediction


def paced_batches() -> Batches:
    torch.manual_seed(0)
    return [(torch.randn(64, 64), torch.randint(0, 10, (64,))) for _ in range(100)]


def kinds(folder: Path) -> dict[str, Callable[[], list[object]]]:
    nowhere = open(os.devnull, "w")  # noqa: SIM115 - open until the program ends

    def progress() -> Progress:
        return Progress(console=Console(file=nowhere, force_terminal=True, width=120))

    def csv_log() -> CSVLogger:
        return CSVLogger(folder / f"{time.monotonic_ns()}.csv")

    return {
        "bare": list,
        "bare, again": list,
        "LossPlot": lambda: [LossPlot(path=folder)],
        "LossPlot over batches": lambda: [LossPlot("batches", path=folder)],
        "GradNormVis": lambda: [GradNormVis(path=folder)],
        "Progress": lambda: [progress()],
        "CSVLogger": lambda: [csv_log()],
        "together": lambda: [LossPlot(path=folder), GradNormVis(path=folder), progress(), csv_log()],
        "together, over batches": lambda: [LossPlot("batches", path=folder), GradNormVis(path=folder), progress(), csv_log()],
    }


def train(model: nn.Module, batches: Batches, extensions: list[object], window: int) -> Clock:
    clock = Clock(window)
    gc.collect()
    Loop(
        model,
        loss,
        EPOCHS,
        batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        extensions=[clock, *extensions],
        evaluate_first=False,
        device="cpu",
    ).train()
    return clock


def compare(title: str, make_model: Callable[[], nn.Module], batches: Batches, window: int, rounds: int, limit: float) -> None:
    steps: dict[str, list[float]] = {}
    around: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = kinds(Path(folder))
        for number in range(rounds + 1):
            for name, make in made.items():
                torch.manual_seed(1)
                clock = train(make_model(), batches, make(), window)
                if number:  # the first round includes imports
                    steps.setdefault(name, []).extend(seconds / window for seconds in clock.windows)
                    around[name] = min(around.get(name, 1e9), *clock.around)
    least = {name: min(seconds) + around[name] / len(batches) for name, seconds in steps.items()}
    fifth = {name: sorted(seconds)[len(seconds) // 5] + around[name] / len(batches) for name, seconds in steps.items()}
    print(f"{title}: {least['bare'] * 1e6:,.0f} microseconds per step, {len(steps['bare'])} windows of {window} steps")
    print(f"  {'':<26}{'us/step':>10}{'min':>8}{'quintile':>10}")
    for name in steps:
        more = (least[name] - least["bare"]) * 1e6
        wanted = f"   at most {limit:.2f}" if name == "together" else ""
        print(f"  {name:<26}{more:>+10.1f}{least[name] / least['bare']:>8.3f}{fifth[name] / fifth['bare']:>10.3f}{wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=["tiny", "paced", "10ms"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "tiny"):
        compare("tiny model", tiny, tiny_batches(), 128, options.rounds, 1.20)
    if options.only in (None, "paced"):
        compare("paced MLP", Paced, paced_batches(), 5, max(1, options.rounds // 2), 1.02)
    if options.only in (None, "10ms"):
        compare("convolutional net", convolutional, image_batches(), 5, options.rounds, 1.02)


if __name__ == "__main__":
    main()
