"""Divides each batch among the ranks.

Rank 0 draws the samples' indices from the sampler and sends them to the other ranks. Together, the ranks therefore train
on the same batches as a single process would, no matter which random numbers the sampler draws. Each rank loads only
its own samples.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from trainmaster.errors import SettingError
from trainmaster.loop.batches import outline, true_batch_size
from trainmaster.loop.ranks import Ranks

_BATCHES_PER_MESSAGE = 64
"""The number of batches whose indices are sent at once."""


class Parts:
    """Determines this rank's part of each batch, and records the sizes of the parts."""

    def __init__(self, ranks: Ranks, what: str) -> None:
        self._ranks, self._what = ranks, what
        self.sizes: list[tuple[int, int]] = []
        """For each batch of the current pass, the number of samples on this rank and on all ranks together."""

    def next_part(self, size: int) -> slice:
        """Return the slice that selects this rank's samples in the next batch.

        If the batch has too few samples for all ranks, a rank without a sample reads the first sample with weight 0,
        because all ranks must take the same number of steps.
        """
        rank, num = self._ranks.rank, self._ranks.num
        if size < num and not self.sizes and self._what == "train_data":
            raise SettingError(
                f"the first batch of train_data has {size} sample{'s' if size != 1 else ''}, fewer than the {num} ranks",
                hint=f"use batches of at least {num} samples, or fewer processes",
            )
        start, stop = size * rank // num, size * (rank + 1) // num
        self.sizes.append((stop - start, size))
        return slice(start, stop) if stop > start else slice(0, 1)


class _Divided:
    """The batches of `whole`, reduced to this rank's share of each batch."""

    def __init__(self, whole: Any, ranks: Ranks, what: str) -> None:
        self._whole, self._ranks, self._what = whole, ranks, what
        self.parts = Parts(ranks, what)

    def __len__(self) -> int:
        return len(self._whole)  # raises a TypeError if a sampler has no length


class PartSampler(_Divided):
    """A batch sampler that yields only one rank's share of the indices in each batch."""

    def __iter__(self) -> Iterator[Any]:
        self.parts = parts = Parts(self._ranks, self._what)
        indices = iter(self._whole) if self._ranks.is_first else iter(())
        is_last = False
        while not is_last:
            batches = self._ranks.from_first(list(islice(indices, _BATCHES_PER_MESSAGE)))
            is_last = len(batches) < _BATCHES_PER_MESSAGE
            for batch in batches:
                yield batch[parts.next_part(len(batch))]


class PartBatches(_Divided):
    """An iterable over a list of batches that yields only one rank's share of the samples in each batch."""

    def __iter__(self) -> Iterator[Any]:
        self.parts = parts = Parts(self._ranks, self._what)
        for number, batch in enumerate(self._whole):
            size = true_batch_size(batch)
            part = parts.next_part(size)
            try:
                yield part_of(batch, part, size)
            except _CannotSplitError as error:
                raise SettingError(
                    f"batch {number} of {self._what} cannot be divided over {self._ranks.num} ranks",
                    why=f"it is {outline(batch)}, with {size} samples; {error}",
                    hint="pass a DataLoader, whose samples are divided before they become a batch",
                ) from None


def divided(data: Any, ranks: Ranks, what: str) -> Any:
    """Return a version of the data that yields only this rank's part of each batch."""
    if isinstance(data, DataLoader) and data.batch_sampler is not None and not isinstance(data.dataset, IterableDataset):
        samplers = (data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None))
        if any(isinstance(each, DistributedSampler) for each in samplers):
            raise SettingError(
                f"{what} has a DistributedSampler, but the loop divides each batch over the {ranks.num} ranks itself",
                why="each rank would train on a part of its part of the data",
                hint="use a plain sampler: DataLoader(..., shuffle=True), with the batch size for all ranks together",
            )
        part = copy.copy(data)
        part.__dict__["batch_sampler"] = PartSampler(data.batch_sampler, ranks, what)  # DataLoader does not allow assigning this attribute
        if not ranks.is_first:
            part.generator = None  # the generator seeds the workers, which need different random numbers on each rank
        return part
    if isinstance(data, (list, tuple)):
        return PartBatches(data, ranks, what)
    kind = type(data.dataset if isinstance(data, DataLoader) else data).__name__
    raise SettingError(
        f"{what} cannot be divided over {ranks.num} ranks: {kind} has no indices",
        why="each rank would have to read all of it, and nothing ensures that all ranks read the same batches",
        hint="pass a DataLoader with a data set that has `__getitem__` and `__len__`, or a list of batches",
    )


def parts_of(data: Any) -> Parts:
    """Return the `Parts` object of `data`, which must be a result of `divided`."""
    return (data.batch_sampler if isinstance(data, DataLoader) else data).parts  # type: ignore[no-any-return, union-attr]


class _CannotSplitError(Exception): ...


def part_of(batch: Any, part: slice, size: int) -> Any:
    """Apply the slice `part` to every tensor, array and list in a nested batch. Numbers, strings and None are returned unchanged."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        if not batch.shape or batch.shape[0] != size:
            raise _CannotSplitError(f"a part of it has the shape {list(batch.shape)}")
        return batch[part]
    if isinstance(batch, Mapping):
        pairs = {key: part_of(item, part, size) for key, item in batch.items()}
        return pairs if type(batch) is dict else type(batch)(pairs)  # type: ignore[call-arg]  # a mapping built from a dict
    if isinstance(batch, (tuple, list)):
        if any(isinstance(each, (torch.Tensor, np.ndarray, Mapping, tuple, list)) for each in batch):
            items = [part_of(each, part, size) for each in batch]
            return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
        if len(batch) != size:
            raise _CannotSplitError(f"a part of it is a list of length {len(batch)}")
        return batch[part]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if each.init}
        return dataclasses.replace(batch, **{name: part_of(each, part, size) for name, each in fields.items()})
    if batch is None or isinstance(batch, (int, float, str)):
        return batch
    raise _CannotSplitError(f"a part of it is a {type(batch).__name__}")
