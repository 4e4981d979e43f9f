"""Measures the overhead of a manager: the time of a run compared with the loop alone, and how long a save blocks training.

    python benchmarks/runs.py [--epochs 8] [--repeats 12] [--mb 100]

The loop is the one in `step_overhead.py`: a tiny model, epochs of 1,000 steps, and a checkpoint after each epoch. Short
training runs with and without a manager alternate. The benchmark reports the minimum CPU time of an epoch, summed over
all threads, which is robust on a busy machine. Saves are measured in wall time, because that is how long training
waits; saves in the background and in the foreground alternate.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmaster import CheckpointSaver, Extension, Manager, TrainManager

STEPS = 1000


class Tiny(TrainManager):
    def model_forward(self, batch: Any) -> Any:
        return self.model(batch[0])


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(16, 32), torch.randint(0, 4, (16,))) for _ in range(STEPS)]


BATCHES = batches()


def tiny_loop(epochs: int) -> TrainManager:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def loss(batch: Any, prediction: Any) -> Any:
        return nn.functional.cross_entropy(prediction, batch[1])

    return Tiny(model, loss, epochs, BATCHES, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))


class EpochClock(Extension):
    """Records the CPU time that all threads spend on each epoch, including its evaluation and its saves."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def pre_train_step_epoch(self) -> None:
        self.times.append(time.process_time())

    def epochs(self) -> list[float]:
        """Return the times of all epochs except the first, which is a warm-up, and the last, whose end is not recorded."""
        return [end - start for start, end in itertools.pairwise(self.times)][1:]


def compare_runs(folder: Path, epochs: int, repeats: int) -> None:
    clock = EpochClock()

    class TinyRuns(Manager):
        def make_loop(self, config: Any) -> TrainManager:
            loop = tiny_loop(0)
            loop.add_extension("clock", clock)
            return loop

    manager = TinyRuns(folder / "runs", verbose=False)
    manager.process({"seed": -1}, 1)  # imports everything before the measurement starts
    bare: list[float] = []
    hosted: list[float] = []
    once: list[float] = []
    for number in range(repeats):
        clock = EpochClock()
        loop = tiny_loop(epochs)
        loop.add_extension("clock", clock)
        loop.train()
        bare += clock.epochs()
        clock = EpochClock()
        started = time.process_time()
        manager.process({"seed": number}, epochs)
        whole = time.process_time() - started
        hosted += clock.epochs()
        once.append(whole - (clock.times[-1] - clock.times[0]) * epochs / (epochs - 1))
    for name, take in (("least", min), ("middle", statistics.median)):
        ratio = take(hosted) / take(bare)
        times = f"{take(hosted) * 1e3:5.0f} ms of {take(bare) * 1e3:5.0f}"
        print(f"an epoch of {STEPS:,} steps with a checkpoint, {name:<6}   {times}   {ratio:6.3f} times   at most 1.10")
    print(f"fixed overhead of a run, {'median':<23}   {statistics.median(once) * 1e3:5.0f} ms")


class Wide(nn.Module):
    def __init__(self, mb: int) -> None:
        super().__init__()
        side = round((mb * 2**20 / 4 / 8) ** 0.5)
        self.layers = nn.ModuleList(nn.Linear(side, side, bias=False) for _ in range(8))
        self.last = nn.Linear(4, 1)

    def forward(self, batch: Any) -> Any:
        return self.last(batch[0])


class Timed(CheckpointSaver):
    """Records how long each save blocks training."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds: list[float] = []

    def post_eval(self, train_manager: Any, fixtures: Any, eval_losses: Any, epoch_num: int, stopped: str | None) -> None:
        started = time.perf_counter()
        super().post_eval(train_manager, fixtures, eval_losses, epoch_num, stopped)
        if epoch_num > 0:
            self.seconds.append(time.perf_counter() - started)


def held_up(folder: Path, mb: int, in_background: bool, num_saves: int = 6) -> list[float]:
    saver = Timed(keep=1, in_background=in_background)
    data = [(torch.randn(4, 4), torch.randn(4, 1))]

    class Slow(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            time.sleep(1.5)  # a slow step leaves time for writing
            return self.model(batch)

    model = Wide(mb)
    loop = Slow(
        model,
        lambda batch, prediction: (prediction - batch[1]).pow(2).mean(),
        num_saves,
        data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        extensions=[("checkpoint_saver", saver)],
        train_dir=folder / f"wide-{in_background}-{time.monotonic_ns()}",
    )
    loop.train()
    assert loop.train_dir is not None
    shutil.rmtree(loop.train_dir)
    return saver.seconds[1:]


def compare_saves(folder: Path, mb: int, repeats: int) -> None:
    plain: list[float] = []
    behind: list[float] = []
    for _ in range(repeats):
        plain += held_up(folder, mb, in_background=False)
        behind += held_up(folder, mb, in_background=True)
    for name, take in (("least", min), ("middle", statistics.median)):
        ratio = take(behind) / take(plain)
        times = f"{take(behind) * 1e3:5.0f} ms of {take(plain) * 1e3:5.0f}"
        print(f"a save of {mb} MB blocks training, {name:<6}   {times}   {ratio:5.3f}   at most 0.200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--mb", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as text:
        compare_runs(Path(text), options.epochs, options.repeats)
        compare_saves(Path(text), options.mb, max(1, options.repeats // 3))


if __name__ == "__main__":
    main()
