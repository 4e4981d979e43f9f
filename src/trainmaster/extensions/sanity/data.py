"""Checks of the data: numbers that cannot be right, and samples that are trained on and evaluated."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset, WeightedRandomSampler

from trainmaster.extensions.example_batch import count_examples, rebuilt
from trainmaster.extensions.sanity.report import Finding, counted, failed, not_applicable, passed
from trainmaster.extensions.sanity.scene import Scene
from trainmaster.loop.batches import named_tensors
from trainmaster.loop.position import fresh_iterator

_SCALES: Final = 1e4
"""How many times more one column of the inputs may vary than another."""
_MAX_SAMPLES: Final = 200_000
_OVERLAP_TIME: Final = 5.0
"""Seconds, for the training data and for the evaluation sets each."""
_NUM_SHOWN: Final = 5
_TOO_GOOD: Final = "take them out of one of the two: an evaluation on samples of the training is too good"


def check_data(scene: Scene) -> Finding:
    """Are all numbers finite, are there several labels, and do the inputs have one scale?"""
    parts = [(f"train_data, batch {number}", batch) for number, batch in enumerate(scene.batches)]
    parts += [(f"evaluation set, batch {number}", batch) for number, batch in enumerate(scene.eval_batches)]
    for place, batch in parts:
        for path, tensor in named_tensors(batch):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                count = int((~torch.isfinite(tensor)).sum())
                return failed(
                    f"{place}: {count:,} of {tensor.numel():,} values of batch{path} are nan or inf", "repair or drop such samples"
                )
    labels = [each for batch in scene.batches if (each := scene.labels_of(batch)) is not None]
    wrong = _wrong_labels(labels) or _wrong_scale(scene)
    if wrong is not None:
        return wrong
    kinds = _kinds(labels)
    told = f"; {kinds} different labels" if kinds else ""
    return passed(f"{counted(len(scene.batches), 'batch')} looked at: all numbers are finite{told}")


def _kinds(labels: list[torch.Tensor]) -> int:
    """The number of different labels, if they are classes."""
    if not labels or any(each.is_floating_point() or each.ndim != 1 for each in labels):
        return 0
    return len(torch.unique(torch.cat(labels)))


def _wrong_labels(labels: list[torch.Tensor]) -> Finding | None:
    num = sum(map(len, labels))
    if num < 8 or any(each.ndim != 1 for each in labels):
        return None
    if len(torch.unique(torch.cat(labels))) == 1:
        return failed(f"all {num:,} labels of {counted(len(labels), 'batch')} are {labels[0][0].item()}", "look at how the labels are read")
    is_sorted = len(labels) > 1 and all(len(each) > 1 and len(torch.unique(each)) == 1 for each in labels)
    if is_sorted and not labels[0].is_floating_point():
        return failed("each batch has samples of one class only: the data is sorted", "shuffle it: DataLoader(..., shuffle=True)")
    return None


def _wrong_scale(scene: Scene) -> Finding | None:
    """Columns of a table of inputs, one of which drowns the others."""
    tables = [
        [tensor for _, tensor in named_tensors(scene.without_labels(batch)) if tensor.is_floating_point() and tensor.ndim == 2]
        for batch in scene.batches
    ]
    for parts in zip(*tables, strict=False):
        if any(each.shape[1] != parts[0].shape[1] for each in parts) or sum(map(len, parts)) < 8:
            continue
        spread = torch.cat(parts).double().std(0)
        varied = spread[spread > 0]
        if varied.numel() and float(varied.max() / varied.min()) > _SCALES:
            least = int(torch.where(spread > 0, spread, torch.inf).argmin())
            most = int(spread.argmax())
            return failed(
                f"column {most} of the inputs varies by {float(spread[most]):.2g}, column {least} by {float(spread[least]):.2g}",
                "bring them to one scale: subtract the mean of each column, and divide by its deviation",
            )
    return None


def check_overlap(scene: Scene) -> Finding:
    """Are samples of the evaluation sets in the training data, too?"""
    loop = scene.loop
    sets = {name: data for name, data in loop.eval_data.items() if not isinstance(data, Iterator)}
    if not sets:
        return not_applicable("there is no evaluation set" if not loop.eval_data else "the evaluation sets can be gone through only once")
    same = _same_indices(loop.train_data, sets)
    if same is not None:
        return same
    train = _Samples(scene, loop.train_data)
    if train.odd is not None:
        return not_applicable(f"samples hold a {train.odd}, which cannot be compared")
    num_eval, found, texts = 0, 0, []
    for name, data in sets.items():
        samples = _Samples(scene, data)
        num_eval += samples.num
        twice = {index: train.where[digest] for digest, index in samples.where.items() if digest in train.where}
        found += len(twice)
        if twice:
            texts.append(_overlapping(name, samples.num, twice))
    looked = f"{counted(num_eval, 'sample')} compared with {counted(train.num, 'sample')} of train_data"
    is_part = " (not all: that would take too long)" if train.is_cut else ""
    if found and train.num_repeated / max(train.num, 1) >= found / max(num_eval, 1):
        return not_applicable(f"{looked}: {found:,} are equal, but as many are within train_data: inputs have few different values")
    if found:
        return failed("\n".join(texts), _TOO_GOOD)
    if _changes(scene, loop.train_data, train):
        return not_applicable(
            f"{looked}: none is equal, but samples of train_data change from one look to the next (augmentation)",
            "check once without the augmentation",
        )
    return passed(f"{looked}: none is in both{is_part}")


def _same_indices(train_data: Any, sets: Mapping[str, Any]) -> Finding | None:
    """Samples of one and the same data set, found by their numbers: whatever augmentation makes of them."""
    trained = _places(train_data)
    for name, data in sets.items():
        if data is train_data:
            return failed(f"{name!r} is train_data itself", "evaluate on samples that are not trained on")
        places = _places(data)
        if trained is None or places is None or trained[0] is not places[0]:
            continue
        twice = sorted({*trained[1]} & {*places[1]})
        if twice:
            return failed(_overlapping(name, len(places[1]), dict(zip(twice, twice, strict=True))), _TOO_GOOD)
    return None


def _overlapping(name: str, num: int, twice: Mapping[int, int]) -> str:
    """How many samples are in both, and the first of them, here and there."""
    first = sorted(twice)[:_NUM_SHOWN]
    here, there = (", ".join(map(str, each)) + (", ..." if len(twice) > _NUM_SHOWN else "") for each in (first, [twice[i] for i in first]))
    place = f"indices {here}" if here == there else f"indices {here} are {there} there"
    return f"{len(twice):,} of {num:,} samples of {name!r} are in train_data, too: {place}"


def _places(data: Any) -> tuple[Any, list[int]] | None:
    """The data set below all subsets, and the numbers of the samples in it."""
    if not _is_indexed(data):
        return None
    dataset, indices = data.dataset, _indices(data)
    while type(dataset) is Subset:
        indices = [int(dataset.indices[each]) for each in indices]
        dataset = dataset.dataset
    return dataset, indices


def _is_indexed(data: Any) -> bool:
    dataset = getattr(data, "dataset", None)
    if not isinstance(data, DataLoader) or isinstance(dataset, IterableDataset):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _indices(loader: Any) -> list[int]:
    """The numbers of the samples that a loader takes, in order where it takes all of them."""
    num, sampler = len(loader.dataset), loader.sampler
    if loader.batch_sampler is not None and getattr(loader.batch_sampler, "sampler", None) is not sampler:
        return [int(each) for batch in itertools.islice(loader.batch_sampler, num) for each in batch]
    if isinstance(sampler, (SequentialSampler, RandomSampler, WeightedRandomSampler)):
        return list(range(num))
    return [int(each) for each in itertools.islice(sampler, num)]


class _Samples:
    """The digests of all samples of some data, as far as time allows."""

    def __init__(self, scene: Scene, data: Any) -> None:
        self.where: dict[bytes, int] = {}
        """Where each was seen first."""
        self.num = self.num_repeated = 0
        self.is_cut = False
        self.odd: str | None = None
        """What cannot be compared."""
        until = time.monotonic() + _OVERLAP_TIME
        for index, sample in _samples(data):
            if self.num >= _MAX_SAMPLES or time.monotonic() >= until:
                self.is_cut = True
                return
            try:
                digest = digest_of(scene.without_labels(sample))
            except _OddError as error:
                self.odd = str(error)
                return
            self.num += 1
            self.num_repeated += digest in self.where
            self.where.setdefault(digest, index)


def _samples(data: Any) -> Iterator[tuple[int, Any]]:
    """Every sample with its index; of batches, one after the other."""
    if _is_indexed(data):
        yield from ((index, data.dataset[index]) for index in dict.fromkeys(_indices(data)))
        return
    count = itertools.count()
    for batch in () if isinstance(data, Iterator) else fresh_iterator(data):
        num = count_examples(batch)
        if num is None:
            yield next(count), batch
            continue
        for row in range(num):
            yield next(count), rebuilt(batch, num, itemgetter(row), lambda tensor: tensor)


def _changes(scene: Scene, data: Any, seen: _Samples) -> bool:
    """Whether a sample differs from look to look. One of batches, which may come in another order, is looked for among all."""
    if _is_indexed(data):
        index = next(iter(seen.where.values()))
        one, two = (digest_of(scene.without_labels(data.dataset[index])) for _ in range(2))
        return one != two
    _, sample = next(_samples(data))
    return not seen.is_cut and digest_of(scene.without_labels(sample)) not in seen.where


class _OddError(Exception):
    """A value that has no digest; its type."""


def digest_of(value: Any) -> bytes:
    """A digest of all that is in a sample: tensors, arrays, images, texts and numbers, through containers."""
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher, value)
    return hasher.digest()


def _feed(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hasher.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic):
        hasher.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif value is None or isinstance(value, str | bytes | int | float | complex):
        hasher.update(repr(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _feed(hasher, key)
            _feed(hasher, each)
    elif isinstance(value, tuple | list):
        hasher.update(str(len(value)).encode())
        for each in value:
            _feed(hasher, each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _feed(hasher, getattr(value, field.name))
    elif callable(getattr(value, "tobytes", None)):  # an image
        hasher.update(f"{getattr(value, 'mode', '')}{getattr(value, 'size', '')}".encode() + value.tobytes())
    else:
        raise _OddError(type(value).__name__)
