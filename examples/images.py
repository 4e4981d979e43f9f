"""Classify images with a small CNN, random shifts and flips, a one-cycle schedule, and an EMA of the weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainmaster import EMA, ClipGradients, Config, Supervised

CLASSES = ("disk", "ring", "square", "cross")
SIZE = 16
defaults = {"epochs": 12, "width": 16, "lr": 0.02, "batch_size": 64, "augment": True, "seed": 0}


def draw_shapes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images and their labels. Each image shows one shape with a random position, size and brightness."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASSES), (count,), generator=generator)
    center = 5 + (SIZE - 11) * torch.rand(count, 2, 1, 1, generator=generator)
    radius = 3 + 1.5 * torch.rand(count, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    dy, dx = (y - center[:, 0]).abs(), (x - center[:, 1]).abs()
    distance, largest, smallest = (dy**2 + dx**2).sqrt(), torch.maximum(dy, dx), torch.minimum(dy, dx)
    masks = torch.stack([
        distance <= radius,
        (distance <= radius) & (distance >= radius - 1.5),
        largest <= 0.85 * radius,
        (largest <= radius) & (smallest <= 0.7),
    ])  # fmt: skip
    shapes = masks[labels, torch.arange(count)] * (0.5 + 0.5 * torch.rand(count, 1, 1, generator=generator))
    return (shapes + 0.25 * torch.randn(count, SIZE, SIZE, generator=generator)).unsqueeze(1), labels


class Augmented(Dataset):
    """A dataset that randomly shifts each image by up to two pixels, and flips it with probability 0.5."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        down, right = torch.randint(-2, 3, (2,)).tolist()
        image = self.images[index].roll((down, right), dims=(1, 2))
        return image.flip(2) if torch.rand(()) < 0.5 else image, self.labels[index]


def make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(8 * width, len(CLASSES)),
    )  # fmt: skip


def accuracy(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config: Config) -> Supervised:
    images, labels = draw_shapes(1000, seed=1)
    train = Augmented(images, labels) if config.augment else TensorDataset(images, labels)
    train_loader = DataLoader(train, batch_size=config.batch_size, shuffle=True)
    updates = config.epochs * len(train_loader)
    return Supervised(
        make_model(config.width),
        nn.CrossEntropyLoss(label_smoothing=0.05),
        epochs=config.epochs,
        train_data=train_loader,
        eval_data=DataLoader(TensorDataset(*draw_shapes(1000, seed=2)), batch_size=500),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=config.lr),
        lr_schedule=lambda optimizer: OneCycleLR(optimizer, max_lr=config.lr, total_steps=updates),
        metrics={"accuracy": accuracy},
        extensions=[ClipGradients(1.0), EMA(decay=0.9)],
    )


def main(**changes: object) -> float:
    config = Config({**defaults, **changes})
    torch.manual_seed(config.seed)
    loop = make_loop(config)
    loop.train()
    values = dict(loop.history["valid/accuracy"])
    print(f"accuracy {values[0]:.1%} before training, {values[loop.epoch_num]:.1%} after {loop.epoch_num} epochs")

    images, labels = draw_shapes(500, seed=3)
    found = loop.predict([images])[0].argmax(1)
    for number, name in enumerate(CLASSES):
        print(f"{name:>8}: {(found[labels == number] == number).float().mean():.1%} of new images are recognized")
    return values[loop.epoch_num]


if __name__ == "__main__":
    main()
