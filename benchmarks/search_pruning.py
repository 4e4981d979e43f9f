"""Measures how many epochs pruning saves, with searches on scikit-learn's digits with and without a pruner.

    python benchmarks/search_pruning.py [--trials 24] [--epochs 16] [--workers 2]

Every search has the same seed and sampler, so all of them try the same points. A search optimizes the learning rate,
the width and the dropout of a small MLP. The goal, which was fixed before the first run, is that `asha` trains at most
half of the epochs and that its best accuracy is at least as high as without a pruner. The accuracy of a trial is its
accuracy after the last epoch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Manager, Supervised

SPACE = {"lr": "log(1e-5,1)", "width": "int(8,128)", "dropout": "float(0,0.6)"}


def accuracy(prediction: Any, targets: Any) -> Any:
    return (prediction.argmax(1) == targets).float().mean()


def digits_loop(config: Any, epochs: int, progress: bool = True) -> Supervised:
    torch.manual_seed(0)
    digits = load_digits()
    images, targets = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(images))
    train, valid = order[:1200], order[1200:]
    width = config["width"]
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Dropout(config["dropout"]), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    return Supervised(
        model,
        nn.CrossEntropyLoss(),
        epochs=epochs,
        train_data=DataLoader(TensorDataset(images[train], targets[train]), batch_size=32, shuffle=True),
        eval_data=DataLoader(TensorDataset(images[valid], targets[valid]), batch_size=600),
        optimizer=torch.optim.AdamW(model.parameters(), lr=config["lr"]),
        metrics={"accuracy": accuracy},
        progress=progress,
    )


class Digits(Manager):
    defaults: Any = {"lr": 0.01, "width": 32, "dropout": 0.1, "epochs": 16}

    def make_loop(self, config: Any) -> Supervised:
        return digits_loop(config, config["epochs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{options.trials} trials of up to {options.epochs} epochs on digits, random sampler, seed {options.seed}")
    print(f"{'pruner':8} {'epochs':>7} {'share':>7} {'pruned':>7} {'best accuracy':>14} {'seconds':>8}")
    all_epochs, best_accuracy = 0, 0.0
    for pruner in ("none", "median", "asha"):
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result = Digits(folder, verbose=False).search(
                SPACE, options.trials, "valid/accuracy", sampler="random", pruner=pruner, seed=options.seed, workers=options.workers,
                base={"epochs": options.epochs},
            )  # fmt: skip
        assert result.best is not None
        assert result.best.values is not None
        seconds, epochs, best = time.perf_counter() - started, sum(trial.epochs for trial in result.trials), result.best.values[0]
        if pruner == "none":
            all_epochs, best_accuracy = epochs, best
        verdict = ("ok" if epochs <= all_epochs / 2 and best >= best_accuracy else "MISSED") if pruner == "asha" else ""
        print(
            f"{pruner:8} {epochs:7} {epochs / all_epochs:7.0%} {result.count('pruned'):7} {best:14.2%} {seconds:8.1f}  {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
