"""A stand-in for parts of torchvision: `datasets.CIFAR10` with synthetic images, and three transforms."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

KILL_AFTER = "KILL_AFTER_NUM_IMAGES"
"""The environment variable that makes a process kill itself after a number of images.

Its value is `N`, or `N:FILE` to do it only once.
"""
_NUM_IMAGES = {True: 48, False: 20}
_num_loaded = 0


class CIFAR10:
    """Small images of 10 classes, each class with its own color."""

    classes = [f"class {number}" for number in range(10)]

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root, self.train, self.transform, self.target_transform = Path(root), train, transform, target_transform
        if not download:
            raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
        rng = np.random.default_rng(0 if train else 1)
        self.targets = [int(each) for each in rng.integers(0, 10, _NUM_IMAGES[train])]
        noise = rng.integers(0, 60, (_NUM_IMAGES[train], 8, 8, 3))
        self.data = (noise + np.array(self.targets)[:, None, None, None] * 19).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        global _num_loaded
        _num_loaded += 1
        num, _, file = os.environ.get(KILL_AFTER, "0").partition(":")
        if _num_loaded == int(num) and not (file and os.path.exists(file)):
            if file:
                Path(file).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        image, target = self.data[index], self.targets[index]
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(each)[:, None, None] for each in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


datasets = SimpleNamespace(CIFAR10=CIFAR10)
transforms = SimpleNamespace(Compose=Compose, ToTensor=ToTensor, Normalize=Normalize)
