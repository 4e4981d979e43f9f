"""What a manager costs a training: a run beside its bare loop, and how long a save in the background holds training up.

    python benchmarks/runs.py [--epochs 30] [--repeats 7] [--mb 100]

The loop is that of `step_overhead.py`: a tiny model, epochs of 1,000 steps, a checkpoint after each. Both are measured in turn, again and
again, in CPU time of all threads, and the least of each is compared; `each epoch` leaves out what a run costs once. The saves are
measured by the clock, as training sees them: in the background, and on the spot, in turn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmaster import CheckpointSaver, Manager, TrainManager

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


class TinyRuns(Manager):
    def make_loop(self, config: Any) -> TrainManager:
        return tiny_loop(0)


def cpu_time(act: Any) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


def compare_runs(folder: Path, epochs: int, repeats: int) -> None:
    manager = TinyRuns(folder / "runs", verbose=False)
    manager.process({"seed": -1}, 1)  # imports what is imported once
    least: dict[str, float] = {}
    for number in range(repeats):
        for size in (epochs // 3, epochs):
            config = {"seed": number * 1000 + size}
            acts = {f"loop {size}": tiny_loop(size).train, f"run {size}": lambda config=config, size=size: manager.process(config, size)}
            for name, act in acts.items():
                took = cpu_time(act)
                least[name] = min(least.get(name, took), took)
    few = epochs // 3
    whole = least[f"run {epochs}"] / least[f"loop {epochs}"]
    each = (least[f"run {epochs}"] - least[f"run {few}"]) / (least[f"loop {epochs}"] - least[f"loop {few}"])
    once = least[f"run {few}"] - least[f"loop {few}"] * each
    print(f"a run of {epochs} epochs of {STEPS:,} steps, beside its loop   {whole:6.3f} times   at most 1.10")
    print(f"  each epoch                                            {each:6.3f} times")
    print(f"  once, for each run                                    {once * 1e3:6.0f} ms")


class Wide(nn.Module):
    def __init__(self, mb: int) -> None:
        super().__init__()
        side = round((mb * 2**20 / 4 / 8) ** 0.5)
        self.layers = nn.ModuleList(nn.Linear(side, side, bias=False) for _ in range(8))
        self.last = nn.Linear(4, 1)

    def forward(self, batch: Any) -> Any:
        return self.last(batch[0])


class Timed(CheckpointSaver):
    """Notes how long each save holds training up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds: list[float] = []

    def post_train_step_epoch(self, train_manager: Any, fixtures: Any, epoch_num: int, stopped: str | None) -> None:
        started = time.perf_counter()
        super().post_train_step_epoch(train_manager, fixtures, epoch_num, stopped)
        self.seconds.append(time.perf_counter() - started)


def held_up(folder: Path, mb: int, in_background: bool, num_saves: int = 6) -> list[float]:
    saver = Timed(keep=1, in_background=in_background)
    data = [(torch.randn(4, 4), torch.randn(4, 1))]

    class Slow(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            time.sleep(1.5)  # steps that leave time to write
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
        print(f"a save of {mb} MB holds training up, {name:<6}   {times}   {ratio:5.3f}   at most 0.200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--mb", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as text:
        compare_runs(Path(text), options.epochs, options.repeats)
        compare_saves(Path(text), options.mb, max(1, options.repeats // 3))


if __name__ == "__main__":
    main()
