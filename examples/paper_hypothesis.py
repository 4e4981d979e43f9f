"""Test a paper's claim with a hypothesis test, run an ablation, and print the ablation as a LaTeX table."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Ablation, Config, Hypothesis, Manager, Supervised

defaults = {"depth": 10, "width": 24, "skip": True, "norm": True, "momentum": 0.9, "lr": 0.01, "epochs": 6, "seed": 0}


class Block(nn.Module):
    def __init__(self, width: int, skip: bool, norm: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width) if norm else nn.Identity(), nn.Linear(width, width), nn.ReLU())
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.skip else self.layers(x)


def make_spirals(count: int, seed: int) -> TensorDataset:
    """Return points on two spirals that wind around each other."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    radius = torch.rand(count, generator=generator).sqrt()
    angle = 2 * math.pi * radius + math.pi * labels
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return TensorDataset(2 * points + 0.05 * torch.randn(count, 2, generator=generator), labels)


def make_loop(config: Config) -> Supervised:
    blocks = [Block(config.width, config.skip, config.norm) for _ in range(config.depth)]
    model = nn.Sequential(nn.Linear(2, config.width), *blocks, nn.Linear(config.width, 2))
    return Supervised(
        model,
        nn.CrossEntropyLoss(),
        epochs=config.epochs,
        train_data=DataLoader(make_spirals(600, seed=1), batch_size=50, shuffle=True),
        eval_data=DataLoader(make_spirals(500, seed=2), batch_size=500),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum),
        progress=False,
    )


def main(budget: int = 10, seeds: int = 5, store: str = "runs/paper", workers: int = 2) -> str:
    manager = Manager(store, defaults, make_loop=make_loop, verbose=False)

    claim = Hypothesis("skip=true", better_than="skip=false", on="valid/loss", by=0.1, budget=budget, name="skip")
    print(claim.plan(manager))  # recorded before the first run, so that nobody can move the goalposts
    verdict = claim.test(manager, workers=workers)
    print(verdict)

    parts = {"skip connections": "skip=false", "layer norm": "norm=false", "momentum": "momentum=0.0"}
    report = Ablation(None, parts, seeds=seeds, on="valid/loss", name="parts").run(manager, workers=workers)
    print(report)
    print(report.to_latex())
    return verdict.state


if __name__ == "__main__":
    main()
