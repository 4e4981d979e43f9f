"""Models of many widths that confuse two dimensions in a marked line. Each model has a correct counterpart."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

IN, T = 15, 6


class Wide(nn.Module):
    """A model with a given width, for vectors or sequences of vectors."""

    is_sequence: ClassVar[bool] = False
    features: ClassVar[int] = 1
    """The number of features before the last layer, as a multiple of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(IN, width)
        self.last = nn.Linear(self.features * width, 3)

    @classmethod
    def batch(cls, num: int) -> Any:
        return torch.randn(num, T, IN) if cls.is_sequence else torch.randn(num, IN)

    def forward(self, batch: Any) -> Any:
        return self.last(torch.relu(self.mixed(self.first(batch), batch.shape[0])))

    def mixed(self, h: Any, num: int) -> Any:
        raise NotImplementedError


class WrongView(Wide):
    def mixed(self, h: Any, num: int) -> Any:
        return h.view(self.width, -1).t()  # <- leak


class WrongViewToTheBatch(Wide):
    def mixed(self, h: Any, num: int) -> Any:
        h = h.view(-1, num)  # <- leak
        return h.t()


class WrongReshape(Wide):
    is_sequence = True

    def mixed(self, h: Any, num: int) -> Any:
        h = h.reshape(T, -1, self.width)  # <- leak
        return h.transpose(0, 1).mean(1)


class WrongPermute(Wide):
    is_sequence = True
    features = T

    def mixed(self, h: Any, num: int) -> Any:
        h = h.permute(1, 0, 2)
        return h.reshape(num, -1)  # <- leak


class WrongPermuteOfFeatures(Wide):
    is_sequence = True
    features = T

    def mixed(self, h: Any, num: int) -> Any:
        return h.permute(2, 0, 1).reshape(num, -1)  # <- leak


class WrongStack(Wide):
    features = 2

    def mixed(self, h: Any, num: int) -> Any:
        h = torch.stack([h, 2 * h])
        return h.view(num, -1)  # <- leak


class WrongCat(Wide):
    features = 2

    def mixed(self, h: Any, num: int) -> Any:
        h = torch.cat([h, 2 * h])
        return h.view(num, -1)  # <- leak


class RightView(Wide):
    def mixed(self, h: Any, num: int) -> Any:
        return h.t().reshape(self.width, -1).t()


class RightReshape(Wide):
    is_sequence = True

    def mixed(self, h: Any, num: int) -> Any:
        return h.transpose(0, 1).reshape(T, -1, self.width).transpose(0, 1).mean(1)


class RightFlatRows(Wide):
    is_sequence = True

    def mixed(self, h: Any, num: int) -> Any:
        return h.reshape(-1, self.width).sin().view(num, T, self.width).mean(1)


class RightPermute(Wide):
    is_sequence = True
    features = T

    def mixed(self, h: Any, num: int) -> Any:
        return h.permute(0, 2, 1).reshape(num, -1)


class RightStack(Wide):
    features = 2

    def mixed(self, h: Any, num: int) -> Any:
        return torch.stack([h, 2 * h], 1).view(num, -1)


class RightCat(Wide):
    features = 2

    def mixed(self, h: Any, num: int) -> Any:
        return torch.cat([h, 2 * h], 1).view(num, -1)


WRONG = [WrongView, WrongViewToTheBatch, WrongReshape, WrongPermute, WrongPermuteOfFeatures, WrongStack, WrongCat]
RIGHT = [RightView, RightReshape, RightFlatRows, RightPermute, RightStack, RightCat]
WIDTHS = [7, 14, 16, 21, 32, 64, 128, 256]
