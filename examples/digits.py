"""Train a small classifier on scikit-learn's bundled digits: the demo of `make demo`."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset, random_split

from trainmaster import RunReport, Supervised

EPOCHS = 20


def make_model() -> nn.Module:
    """Two convolutions and a linear layer, for images of 8 by 8."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10),
    )  # fmt: skip


def accuracy(prediction, targets):
    return (prediction.argmax(1) == targets).float().mean()


def main() -> float:
    torch.set_num_threads(1)  # a model this small gains nothing from more threads
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    train, valid = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])
    train_loader = DataLoader(train, batch_size=64, shuffle=True)
    loop = Supervised(
        make_model(),
        nn.CrossEntropyLoss(),
        epochs=EPOCHS,
        train_data=train_loader,
        eval_data=DataLoader(valid, batch_size=256),
        optimizer=AdamW,
        lr_schedule=lambda optimizer: OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * len(train_loader)),
        metrics={"accuracy": accuracy},
        extensions=[RunReport()],
    )

    loop.train()
    _, last = loop.history["valid/accuracy"][-1]
    print(f"\nvalidation accuracy {last:.1%}\n")

    print("What ran, and where you can hook in:\n")
    print(loop.describe())
    print(
        "\nWhat to look at next:\n"
        "  examples/digits.py           this program\n"
        "  docs/stages.md               write an extension of your own\n"
        "  docs/train_manager.md        everything the loop does\n"
        "  src/trainmaster/loop/        the loop itself: stages.py, then train_manager.py"
    )
    return float(last)


if __name__ == "__main__":
    if main() < 0.97:
        raise SystemExit("the demo should reach 97 % validation accuracy, and did not")
