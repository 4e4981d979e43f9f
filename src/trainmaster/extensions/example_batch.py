"""A batch as a set of examples: taking a few of them, and replacing some by others.

Tensors, tuples, named tuples, lists, mappings and dataclasses are walked through. What belongs to the examples is every tensor whose first
dimension is the number of examples, and every list of that many other things (texts, tensors of different lengths).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainmaster.loop.batches import first_tensor, tensors_in

_SIZES = (7, 11, 13, 5, 17, 3)
"""Primes: a size that divides no other dimension cannot be taken for it, so that a wrong view is seen in the very line of the view."""


def count_examples(batch: Any) -> int | None:
    """The first dimension of the first tensor; None where there is none."""
    tensor = first_tensor(batch)
    return None if tensor is None or tensor.ndim == 0 else tensor.shape[0]


def rebuilt(nest: Any, num: int | None, of_examples: Callable[[Any], Any], of_others: Callable[[torch.Tensor], Any]) -> Any:
    """The nesting anew: `of_examples` makes what belongs to the `num` examples, `of_others` the tensors that do not.

    `num=None` takes every tensor as one of the examples.
    """

    def again(item: Any) -> Any:
        return rebuilt(item, num, of_examples, of_others)

    if isinstance(nest, torch.Tensor):
        return of_examples(nest) if num is None or (nest.ndim and nest.shape[0] == num) else of_others(nest)
    if num is not None and _is_list_of_examples(nest, num):
        return of_examples(nest)
    if isinstance(nest, (tuple, list)):
        items = [again(item) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)
    if isinstance(nest, Mapping):
        pairs = {key: again(item) for key, item in nest.items()}
        return pairs if type(nest) is dict else type(nest)(pairs)  # type: ignore[call-arg]  # a mapping built from a dict
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        return dataclasses.replace(nest, **{each.name: again(getattr(nest, each.name)) for each in dataclasses.fields(nest) if each.init})
    return nest


def _is_list_of_examples(nest: Any, num: int) -> bool:
    if type(nest) not in (list, tuple) or len(nest) != num:
        return False
    return not any(tensor.ndim and tensor.shape[0] == num for item in nest for tensor in tensors_in(item))


def fitting_size(batch: Any, num: int) -> int:
    """How many of `num` examples to look at: few, and a number that is no other dimension of the batch."""
    others: list[int] = []
    rebuilt(batch, num, lambda leaf: others.extend(leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else None, lambda _: None)
    free = [size for size in _SIZES if size <= num and not any(other and other % size == 0 for other in others)]
    return free[0] if free else min(num, 7)


def take(batch: Any, num: int, size: int) -> Any:
    """The first `size` examples."""
    return batch if size == num else rebuilt(batch, num, lambda leaf: leaf[:size], lambda tensor: tensor)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A batch, and for each example another one whose content can stand in its place."""

    batch: Any
    num: int
    sources: tuple[int, ...]
    noise: int | None = None
    """Seed of the noise that makes a difference where all examples are equal."""

    @classmethod
    def of(cls, batch: Any, num: int) -> Replacement | None:
        """None where all examples are equal, and no float could be changed a little."""
        leaves: list[Any] = []
        rebuilt(batch, num, leaves.append, lambda _: None)
        sources = []
        for one in range(num):
            others = [(one + step) % num for step in range(1, num)]
            sources.append(next((other for other in others if not _is_same(leaves, one, other)), None))
        if None not in sources:
            return cls(batch, num, tuple(source for source in sources if source is not None))
        if any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves):
            return cls(batch, num, tuple((one + 1) % num for one in range(num)), noise=0)
        return None

    def make(self, chosen: Sequence[bool] | None, *, keeps_layout: bool, own: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """The batch with the `chosen` examples replaced; `own` makes each tensor of floats one that gradients reach.

        With `keeps_layout`, what may decide about shapes stays: lengths, masks, and where a table of numbers is zero or negative.
        Nothing of it is shared with the batch, which the model may write to.
        """
        rows = [source if chosen and chosen[one] else one for one, source in enumerate(self.sources)]

        def of_examples(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf if keeps_layout else type(leaf)(leaf[row] for row in rows)
            index = torch.tensor(rows, device=leaf.device)
            if leaf.is_floating_point():
                new = leaf.detach()[index]
                return own(new if self.noise is None or chosen is None else self._noisy(new, chosen))
            if not keeps_layout:
                return leaf[index]
            if leaf.ndim == 1 or leaf.dtype == torch.bool:
                return leaf.clone()
            other = leaf[index]
            return torch.where((leaf > 0) & (other > 0), other, leaf)

        return rebuilt(self.batch, self.num, of_examples, torch.clone)

    def _noisy(self, leaf: torch.Tensor, chosen: Sequence[bool]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.noise or 0)
        scale = leaf.abs().mean() + 0.1
        noise = torch.randn(leaf.shape, generator=generator).to(leaf) * scale
        mask = torch.tensor(chosen, device=leaf.device).view(-1, *[1] * (leaf.ndim - 1))
        return torch.where(mask, leaf + noise, leaf)


def _is_same(leaves: Sequence[Any], one: int, other: int) -> bool:
    def is_equal(leaf: Any) -> bool:
        first, second = leaf[one], leaf[other]
        if isinstance(first, torch.Tensor):
            return isinstance(second, torch.Tensor) and torch.equal(first, second)
        return first is second

    return all(map(is_equal, leaves))
