"""Classify scikit-learn's handwritten digits with a small CNN. `make demo` runs this program.

trainmaster run examples/digits.py lr=0.02
trainmaster sweep examples/digits.py lr=0.003,0.01,0.03 width=8,16 --workers 2
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import ConfigBase, Extension, Replicate, Supervised, configclass


@configclass
class Digits(ConfigBase):
    lr: float = 0.01
    width: int = 16
    dropout: float = 0.2
    batch_norm: bool = True
    noise: bool = True
    epochs: int = 12
    seed: Replicate[int] = 0  # runs that differ only in their seed are replicates of one setting


class NoisyImages(Extension):
    """Augments the training data by adding noise to the images in each batch."""

    def pre_train_step_batch(self, fixtures, batch) -> None:
        images, labels = batch
        fixtures.modify("batch", (images + 0.1 * torch.randn_like(images), labels))


def make_model(config: Digits) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(outputs) if config.batch_norm else nn.Identity()
        return [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]

    width = config.width
    return nn.Sequential(
        *block(1, width), nn.MaxPool2d(2), *block(width, 2 * width),
        nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(2 * width * 4 * 4, 10),
    )  # fmt: skip


def accuracy(prediction: Tensor, targets: Tensor) -> Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config: Digits) -> Supervised:
    torch.set_num_threads(1)  # a model this small gains nothing from more threads
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))  # the same split for every config
    train, valid = order[:1400], order[1400:]
    train_loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=50, shuffle=True)
    valid_loader = DataLoader(TensorDataset(images[valid], labels[valid]), batch_size=400)
    steps = config.epochs * len(train_loader)
    return Supervised(
        make_model(config),
        nn.CrossEntropyLoss(),
        epochs=config.epochs,
        train_data=train_loader,
        eval_data=valid_loader,
        optimizer=torch.optim.AdamW,
        lr_schedule=lambda optimizer: OneCycleLR(optimizer, max_lr=config.lr, total_steps=steps),
        metrics={"accuracy": accuracy},
        extensions=[NoisyImages()] if config.noise else [],
    )
