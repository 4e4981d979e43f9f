"""Measures how much memory saving and resuming need in addition to training.

    python checkpoint_memory.py FOLDER WAY OPTIMIZER LAYERS

WAY is `background`, `waiting` or `resume` (after one of the others, in the same folder); a layer takes 36 MB. A process
measures one WAY and prints one line of numbers in MB.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmaster import CheckpointSaver, TrainManager

MB = 2**20
WIDTH = 3072
"""With this width, a layer takes more than 32 MB, so freed memory is returned to the system immediately."""


def memory(name: str) -> float:
    """Return a field of `/proc/self/status` in MB: `VmRSS` is the current use, `VmHWM` the peak since the reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def size_of(value: Any) -> float:
    """Return the size of the tensors in a nested value, in MB."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() / MB
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(size_of, children))


def make(folder: str, way: str, optimizer: str, num_layers: int) -> TrainManager:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))
    saver = CheckpointSaver(in_background=way == "background")
    return TrainManager(
        model,
        lambda _, prediction: prediction.pow(2).mean(),
        1 if way == "resume" else 2,
        [torch.ones(1, WIDTH)] * 2,
        optimizer=lambda parameters: getattr(torch.optim, optimizer)(parameters, lr=1e-3),
        extensions=[saver],
        train_dir=folder,
        device="cpu",
        progress=False,
    )


def main(folder: str, way: str, optimizer: str, num_layers: str) -> None:
    torch.set_num_threads(1)
    loop = make(folder, way, optimizer, int(num_layers))
    before = memory("VmRSS")
    forget_peak()
    loop.train()
    peak = memory("VmHWM")
    assert loop.optimizer is not None
    weights, moments = size_of(loop.model.state_dict()), size_of(loop.optimizer.state_dict())
    gradients = size_of([each.grad for each in loop.model.parameters()])
    files = [path.stat().st_size / MB for path in Path(folder, "checkpoints").glob("*.ckpt/tensors.safetensors")]
    print(json.dumps({"kept": weights + moments, "stored": max(files), "extra": peak - before - moments - gradients}))


if __name__ == "__main__":
    main(*sys.argv[1:])
