"""Takes some examples from a batch, or replaces examples with others from the same batch.

The functions handle nested tuples, named tuples, lists, mappings and dataclasses. Two kinds of values contain one entry
per example: tensors whose first dimension is the number of examples, and lists with one item per example (such as text, or
tensors of different lengths).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from trainmaster.loop.batches import first_tensor, tensors_in

_SIZES = (7, 11, 13, 5, 17, 19, 23, 3)
"""The preferred numbers of examples. They are primes, so they rarely divide the size of another dimension. If the number
of examples divided another dimension, a wrong `view` might not be detected until a later line."""


def count_examples(batch: Any) -> int | None:
    """Return the size of the first tensor's first dimension, or None if there is no tensor or the first tensor has no dimensions."""
    tensor = first_tensor(batch)
    return None if tensor is None or tensor.ndim == 0 else tensor.shape[0]


def map_batch(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `function` to every tensor in a batch."""
    return _map(batch, lambda leaf: isinstance(leaf, torch.Tensor), function)


def map_examples(batch: Any, num: int, function: Callable[[Any], Any], other: Callable[[torch.Tensor], Any] = lambda tensor: tensor) -> Any:
    """Apply `function` to every tensor and list that has one entry for each of the `num` examples, and `other` to all other tensors."""

    def is_leaf(value: Any) -> bool:
        return isinstance(value, torch.Tensor) or _is_list_of_examples(value, num)

    def apply(leaf: Any) -> Any:
        is_other = isinstance(leaf, torch.Tensor) and (leaf.ndim == 0 or leaf.shape[0] != num)
        return other(leaf) if is_other else function(leaf)

    return _map(batch, is_leaf, apply)


def _map(nest: Any, is_leaf: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    if is_leaf(nest):
        return function(nest)
    if isinstance(nest, (tuple, list)):
        items = [_map(item, is_leaf, function) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)
    if isinstance(nest, Mapping):
        pairs = {key: _map(item, is_leaf, function) for key, item in nest.items()}
        return pairs if type(nest) is dict else type(nest)(pairs)  # type: ignore[call-arg]  # a mapping built from a dict
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        fields = [each.name for each in dataclasses.fields(nest) if each.init]
        return dataclasses.replace(nest, **{name: _map(getattr(nest, name), is_leaf, function) for name in fields})
    return nest


def _is_list_of_examples(nest: Any, num: int) -> bool:
    if type(nest) not in (list, tuple) or len(nest) != num:
        return False
    return not any(tensor.ndim and tensor.shape[0] == num for item in nest for tensor in tensors_in(item))


def _example_leaves(batch: Any, num: int) -> list[Any]:
    leaves: list[Any] = []

    def collect(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    map_examples(batch, num, collect)
    return leaves


def choose_size(batch: Any, num: int, dimensions: Iterable[int] = ()) -> int:
    """Choose how many examples to use, for a batch with `num` examples.

    If possible, the result is a small number that divides neither the other dimensions of the batch nor any of
    `dimensions`. It may be greater than `num`, in which case `take_examples` repeats some examples.
    """
    others = set(dimensions)
    for leaf in _example_leaves(batch, num):
        if isinstance(leaf, torch.Tensor):
            others.update(leaf.shape[1:])
    free = [size for size in _SIZES if not any(other and other % size == 0 for other in others)]
    return next((size for size in free if size <= num), free[0] if free else min(num, 7))


def take_examples(batch: Any, num: int, size: int) -> Any:
    """Return the first `size` examples of a batch with `num` examples. If `size` is greater than `num`, examples are repeated."""
    if size == num:
        return batch
    rows = [row % num for row in range(size)]

    def select(leaf: Any) -> Any:
        return leaf[rows] if isinstance(leaf, torch.Tensor) else type(leaf)(leaf[row] for row in rows)

    return map_examples(batch, num, select)


@dataclasses.dataclass(frozen=True)
class ExampleReplacer:
    """Replaces some examples in a batch with others from the same batch."""

    batch: Any
    num: int
    sources: tuple[int, ...]
    """For each example, the index of a different example that can replace it."""

    @classmethod
    def create(cls, batch: Any, num: int) -> ExampleReplacer | None:
        """Create a replacer. Returns None if all examples are equal."""
        leaves = _example_leaves(batch, num)
        orders = ([*range(one + 1, num), *range(one)] for one in range(num))
        sources = [next((other for other in order if not _is_equal(leaves, one, other)), one) for one, order in enumerate(orders)]
        return None if sources == list(range(num)) else cls(batch, num, tuple(sources))

    def replace(self, chosen: Sequence[bool] | None, *, keeps_layout: bool, wrap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Return a copy of the batch with the `chosen` examples replaced. `wrap` is applied to float tensors with one row per example.

        With `keeps_layout`, values that may determine shapes are not replaced: lengths, masks, and the zeros and
        negative numbers of integer tensors.
        """
        rows = [source if chosen and chosen[one] else one for one, source in enumerate(self.sources)]

        def of_examples(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf if keeps_layout else type(leaf)(leaf[row] for row in rows)
            replaced = leaf.detach()[torch.tensor(rows, device=leaf.device)]
            if leaf.is_floating_point():
                return wrap(replaced)
            if not keeps_layout:
                return replaced
            if leaf.ndim == 1 or leaf.dtype == torch.bool:
                return leaf.clone()
            return torch.where((leaf > 0) & (replaced > 0), replaced, leaf)

        return map_examples(self.batch, self.num, of_examples, torch.clone)


def _is_equal(leaves: Sequence[Any], one: int, other: int) -> bool:
    pairs = ((leaf[one], leaf[other]) for leaf in leaves)
    return all(torch.equal(*pair) if all(isinstance(each, torch.Tensor) for each in pair) else pair[0] is pair[1] for pair in pairs)
