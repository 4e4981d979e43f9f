"""Classify patients, using a typed config, a sweep with three seeds per setting, and an evaluation of the best run on the test set."""

from __future__ import annotations

from typing import Literal

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import ConfigBase, EarlyStopping, Manager, Supervised, configclass
from trainmaster.analysis import Results


@configclass
class TabularConfig(ConfigBase):
    lr: float = 0.01
    width: int = 16
    activation: Literal["relu", "tanh"] = "relu"
    epochs: int = 20
    seed: int = 0


def load_data() -> dict[str, TensorDataset]:
    """Return standardized patient data: 60 % for training, 20 % for validation and 20 % for testing."""
    table = load_breast_cancer()
    x, test_x, y, test_y = train_test_split(table.data, table.target, test_size=0.2, stratify=table.target, random_state=0)
    x, valid_x, y, valid_y = train_test_split(x, y, test_size=0.25, stratify=y, random_state=0)
    mean, deviation = x.mean(0), x.std(0)
    parts = {"train": (x, y), "valid": (valid_x, valid_y), "test": (test_x, test_y)}
    return {
        name: TensorDataset(torch.tensor((part - mean) / deviation, dtype=torch.float32), torch.tensor(labels))
        for name, (part, labels) in parts.items()
    }


def accuracy(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config: TabularConfig) -> Supervised:
    data = load_data()
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[config.activation]
    model = nn.Sequential(nn.Linear(30, config.width), activation(), nn.Linear(config.width, 2))
    return Supervised(
        model,
        nn.CrossEntropyLoss(),
        epochs=config.epochs,
        train_data=DataLoader(data["train"], batch_size=32, shuffle=True),
        eval_data=DataLoader(data["valid"], batch_size=200),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=config.lr),
        metrics={"accuracy": accuracy},
        extensions=[EarlyStopping(patience=5)],
        progress=False,
    )


def main(epochs: int = 20, store: str = "runs/tabular", workers: int = 2) -> float:
    manager = Manager(store, make_loop=make_loop, verbose=False)
    choices = {"lr": [0.03, 0.003], "width": [4, 32], "seed": [0, 1, 2], "epochs": [epochs]}
    print("sweep:", manager.sweep(choices, workers=workers))

    print("validation loss, mean of three seeds with its 95 % interval:")
    for group in Results(store, where=f"epochs={epochs}").groups(metric="valid/loss"):
        print(f"  {group.label:<20} {group.mean:.3f}  [{group.low:.3f}, {group.high:.3f}]")

    best = manager.best_work(cond={"epochs": epochs})
    loop = manager.fetch(best, "best").loop
    loop.eval({"test": DataLoader(load_data()["test"], batch_size=200)})
    _, test_accuracy = loop.history["test/accuracy"][-1]
    print(f"best run {best}: test accuracy {test_accuracy:.1%}")
    return test_accuracy


if __name__ == "__main__":
    main()
