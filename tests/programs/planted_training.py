"""A small training run with known effects.

The target is x + y + x * y. Without `x` or `y`, the model sees neither that input nor the product, so the two interact.
`shift` makes the labels wrong. `idle` only changes the initial weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Manager, Supervised

defaults = {"x": 1.0, "y": 1.0, "shift": 0.8, "idle": 0, "seed": 0}
EPOCHS = 3


def make_loop(config: Any) -> Supervised:
    if config.idle:
        torch.rand(1)
    numbers = torch.Generator().manual_seed(1000 + int(config.seed))
    x, y, noise = torch.randn(3, 500, generator=numbers)
    inputs = torch.stack([x * config.x, y * config.y, x * y * config.x * config.y], 1)
    targets = (x + y + x * y)[:, None]
    labels = targets + 0.3 * noise[:, None] + config.shift
    model = nn.Linear(3, 1)
    return Supervised(
        model,
        nn.MSELoss(),
        epochs=EPOCHS,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        train_data=DataLoader(TensorDataset(inputs[:100], labels[:100]), 20, shuffle=True),
        eval_data=DataLoader(TensorDataset(inputs[100:], targets[100:]), 400),
    )


def manager(folder: Any) -> Manager:
    return Manager(folder, defaults, make_loop=make_loop, verbose=False)
