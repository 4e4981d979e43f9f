"""Checks the data for values that are not finite, and for samples that are in both the training and the evaluation data."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from operator import itemgetter
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset, WeightedRandomSampler

from trainmaster.extensions.example_batch import count_examples, map_examples
from trainmaster.extensions.sanity.loop_probe import LoopProbe
from trainmaster.extensions.sanity.report import Finding, failed, passed, skipped
from trainmaster.loop.batches import named_tensors
from trainmaster.loop.data_position import fresh_iterator

_MAX_SAMPLES: Final = 200_000
_OVERLAP_TIME: Final = 5.0
"""The time limit for reading samples, in seconds. It applies separately to the training data and to each evaluation set."""
_NUM_SHOWN: Final = 5
_OVERLAP_ADVICE: Final = "remove them from one of the two: metrics on training samples are too good"


def check_data(probe: LoopProbe) -> Finding:
    """Check that all values in the first batches are finite."""
    batches = [(f"train_data, batch {number}", batch) for number, batch in enumerate(probe.batches)]
    batches += [(f"evaluation set, batch {number}", batch) for number, batch in enumerate(probe.eval_batches)]
    for location, batch in batches:
        for path, tensor in named_tensors(batch):
            num_bad = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
            if num_bad:
                return failed(
                    f"{location}: {num_bad:,} of {tensor.numel():,} values of batch{path} are NaN or infinite",
                    "repair or drop these samples",
                )
    return passed(f"all values of the first {len(probe.batches)} training batches are finite")


def check_overlap(probe: LoopProbe) -> Finding:
    """Check that no samples of the evaluation sets are in the training data."""
    loop = probe.loop
    sets = {name: data for name, data in loop.eval_data.items() if not isinstance(data, Iterator)}
    if not sets:
        return skipped("all evaluation sets are iterators" if loop.eval_data else "there is no evaluation set")
    shared_indices = _find_shared_indices(loop.train_data, sets)
    if shared_indices is not None:
        return shared_indices
    try:
        train = _digest_samples(loop.train_data)
        others = {name: _digest_samples(data) for name, data in sets.items()}
        is_augmented = _is_augmented(loop.train_data, train)
    except _NotComparableError as error:
        return skipped(f"samples contain a {error}, which cannot be compared")
    shared = {
        name: {index: train.indices[digest] for digest, index in other.indices.items() if digest in train.indices}
        for name, other in others.items()
    }
    num_eval, num_shared = sum(each.num for each in others.values()), sum(map(len, shared.values()))
    comparison = f"{num_eval:,} evaluation samples compared with {train.num:,} training samples"
    if num_shared and train.num_repeated / max(train.num, 1) >= num_shared / max(num_eval, 1):
        return skipped(
            f"{comparison}: {num_shared:,} are equal, but training samples repeat each other just as often: inputs have few distinct values"
        )
    if num_shared:
        lines = [_describe_overlap(name, others[name].num, indices) for name, indices in shared.items() if indices]
        return failed("\n".join(lines), _OVERLAP_ADVICE)
    if is_augmented:
        return skipped(f"{comparison}: none are equal, but training samples change each time (augmentation)", "check without augmentation")
    return passed(f"{comparison}: none are in both" + ("" if train.is_complete else " (not all, to save time)"))


def _find_shared_indices(train_data: Any, sets: Mapping[str, Any]) -> Finding | None:
    """Report an overlap if the training data and an evaluation set use the same dataset and share indices. Samples are not compared."""
    trained = _dataset_indices(train_data)
    for name, data in sets.items():
        if data is train_data:
            return failed(f"{name!r} is train_data itself", "evaluate on samples that the model is not trained on")
        evaluated = _dataset_indices(data)
        if trained is None or evaluated is None or trained[0] is not evaluated[0]:
            continue
        shared = sorted({*trained[1]} & {*evaluated[1]})
        if shared:
            return failed(_describe_overlap(name, len(evaluated[1]), {index: index for index in shared}), _OVERLAP_ADVICE)
    return None


def _describe_overlap(name: str, num: int, indices: Mapping[int, int]) -> str:
    """Describe an overlap. `indices` maps indices of the evaluation set to indices of the training data."""
    first = sorted(indices)[:_NUM_SHOWN]
    more = ", ..." if len(indices) > _NUM_SHOWN else ""
    here, there = (", ".join(map(str, each)) + more for each in (first, [indices[index] for index in first]))
    training = "" if here == there else f" (training samples {there})"
    return f"{len(indices):,} of {num:,} samples of {name!r} are also in train_data: indices {here}{training}"


def _dataset_indices(data: Any) -> tuple[Any, list[int]] | None:
    """Return the dataset inside any nested `Subset`s and the indices that are read from it, or None if the data has no indices."""
    if not _is_indexed(data):
        return None
    dataset, indices = data.dataset, _loader_indices(data)
    while type(dataset) is Subset:
        indices = [int(dataset.indices[each]) for each in indices]
        dataset = dataset.dataset
    return dataset, indices


def _is_indexed(data: Any) -> bool:
    dataset = getattr(data, "dataset", None)
    if not isinstance(data, DataLoader) or isinstance(dataset, IterableDataset):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _loader_indices(loader: Any) -> list[int]:
    """Return the indices of the samples that a loader reads."""
    num, sampler = len(loader.dataset), loader.sampler
    if loader.batch_sampler is not None and getattr(loader.batch_sampler, "sampler", None) is not sampler:
        return [int(each) for batch in itertools.islice(loader.batch_sampler, num) for each in batch]
    if isinstance(sampler, (SequentialSampler, RandomSampler, WeightedRandomSampler)):
        return list(range(num))
    return [int(each) for each in itertools.islice(sampler, num)]


@dataclass
class _Digests:
    indices: dict[bytes, int] = field(default_factory=dict)
    """The index of the first sample with each digest."""
    num: int = 0
    num_repeated: int = 0
    is_complete: bool = True


def _digest_samples(data: Any) -> _Digests:
    """Compute digests of the inputs of as many samples as the time limit allows."""
    digests, deadline = _Digests(), time.monotonic() + _OVERLAP_TIME
    for index, sample in _read_samples(data):
        if digests.num >= _MAX_SAMPLES or time.monotonic() >= deadline:
            digests.is_complete = False
            break
        digest = _digest_inputs(sample)
        digests.num += 1
        digests.num_repeated += digest in digests.indices
        digests.indices.setdefault(digest, index)
    return digests


def _read_samples(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield each sample with its index in the dataset or, if the data has no indices, with the number of samples before it."""
    if _is_indexed(data):
        yield from ((index, data.dataset[index]) for index in dict.fromkeys(_loader_indices(data)))
        return
    count = itertools.count()
    for batch in fresh_iterator(data):
        num = count_examples(batch)
        if num is None:
            yield next(count), batch
            continue
        for row in range(num):
            yield next(count), map_examples(batch, num, itemgetter(row))


def _is_augmented(data: Any, digests: _Digests) -> bool:
    """Return whether a sample changes when it is read again. It is compared with all earlier samples, because the data may be shuffled."""
    if not digests.is_complete and not _is_indexed(data):
        return False
    _, sample = next(_read_samples(data))
    return _digest_inputs(sample) not in digests.indices


class _NotComparableError(Exception):
    """A sample contains an object that cannot be compared. The message is the type of the object."""


def _digest_inputs(sample: Any) -> bytes:
    """Return a digest of a sample. If the sample is a pair of inputs and a label, the label is left out."""
    is_pair = isinstance(sample, (tuple, list)) and len(sample) == 2
    hasher = hashlib.blake2b(digest_size=16)
    _update_digest(hasher, sample[0] if is_pair else sample)
    return hasher.digest()


def _update_digest(hasher: Any, sample: Any) -> None:
    for leaf in tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            hasher.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            hasher.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif hasattr(leaf, "tobytes"):  # an array or an image
            hasher.update(f"{getattr(leaf, 'dtype', '')}{getattr(leaf, 'mode', '')}{getattr(leaf, 'shape', leaf.size)}".encode())
            hasher.update(leaf.tobytes())
        elif leaf is None or isinstance(leaf, str | bytes | int | float | complex):
            hasher.update(f"{leaf!r},".encode("utf-8", "surrogatepass"))
        elif is_dataclass(leaf):
            _update_digest(hasher, vars(leaf))
        else:
            raise _NotComparableError(type(leaf).__name__)
