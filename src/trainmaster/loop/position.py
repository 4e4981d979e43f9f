"""Where a training is in its data, and how to get back to exactly there.

A loader's iterator cannot be stored. But it is determined by the random numbers at the start of its epoch: so those are kept, and to
return to batch k the iterator is made again from them, the first k batches are replayed, and the random numbers of now are put back.
That holds for shuffling, for augmentation, and for loader workers, whose seeds come from the same random numbers.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate

from trainmaster.errors import EmptyDataError, StateError
from trainmaster.loop.rng import RngState, get_rng, set_rng
from trainmaster.loop.state import own_copy
from trainmaster.stages.scope import Scope


class Position:
    """The batches of this epoch that are done, and what it takes to find the next one again."""

    __slots__ = ("_epoch_start", "_live", "are_grads_spent", "is_broken_off", "is_in_batch", "num_batches", "paused")

    def __init__(self) -> None:
        self.num_batches = 0
        """Batches of the current epoch that are done."""
        self.are_grads_spent = True
        """The gradients went into an update: the next backward starts from zero."""
        self.is_broken_off = False
        """The last batch was not finished."""
        self.is_in_batch = False
        self._epoch_start: dict[str, Any] | None = None
        self._live: Any = None
        """Data that can be gone through only once: it stands where it stands."""
        self.paused: RngState | None = None
        """The random numbers to go on with, where a training stopped or was restored."""

    def batches(self, data: Any, what: str) -> Iterator[Any]:
        """The batches of this epoch that are left. Whoever takes one says `num_batches += 1` when it is done."""
        self.is_broken_off = False
        if self.num_batches == 0:
            self._epoch_start = {"rng": get_rng(), "data": data_state(data)}
            iterator = fresh_iterator(data)
        else:
            iterator = data if data is self._live else self._replayed(data, what)
        self._live = data if isinstance(data, Iterator) else None
        return iterator

    def check_end(self, data: Any, what: str) -> None:
        """The data has no more batches: was that all?"""
        length = length_of(data)
        if self.num_batches == 0:
            raise empty_error(data, what)
        if length is not None and self.num_batches < length:
            warnings.warn(
                f"{what} ended after {self.num_batches} of {length} batches; does its data set raise StopIteration?", stacklevel=4
            )

    def reset(self) -> None:
        """To the start of an epoch, wherever it was."""
        self.num_batches = 0
        self._epoch_start = None

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """A batch that breaks off leaves no gradients behind: training may be taken up again, with that batch."""
        try:
            yield
        except BaseException:
            self.is_broken_off = True
            self.end_batch()
            raise

    def end_batch(self) -> None:
        """A batch that was not finished leaves no gradients to the next."""
        if self.is_in_batch:
            self.is_in_batch = False
            self.are_grads_spent = True

    def pause(self, rng: RngState) -> None:
        """Remember the random numbers to go on with."""
        self.paused = rng

    def wake(self) -> None:
        """Put back the random numbers of the pause. In the middle of an epoch they are due once more, after the replay."""
        if self.paused is not None:
            set_rng(self.paused)
            if self.num_batches == 0:
                self.paused = None

    def _replayed(self, data: Any, what: str) -> Iterator[Any]:
        now = self.paused or get_rng()
        self.paused = None
        if self._epoch_start is None:
            raise StateError(f"the start of this epoch of {what} is not known", hint="restore a state that was captured by trainmaster")
        started = time.monotonic()
        set_rng(self._epoch_start["rng"])
        set_data_state(data, self._epoch_start["data"])
        iterator = fresh_iterator(data)
        is_skipped = loading_changes_nothing(data)
        for done in range(self.num_batches):
            try:
                next(iterator._sampler_iter if is_skipped else iterator)  # type: ignore[attr-defined]  # only a DataLoader is skipped
            except StopIteration:
                raise StateError(
                    f"{what} ended after {done} batches, but {self.num_batches} of this epoch were done",
                    why="the data is not the one that the state was captured with",
                    hint="give the same data, or start a new training",
                ) from None
        seconds = time.monotonic() - started
        print(
            f"trainmaster: {'skipped' if is_skipped else 'replayed'} the {self.num_batches} batches of {what} "
            f"that were done in this epoch ({seconds:.1f} s)",
            file=sys.stderr,
        )
        set_rng(now)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "epoch_start": self._epoch_start if self.num_batches else None}

    def load_state_dict(self, state: dict[str, Any], rng: RngState) -> None:
        self.num_batches = state["num_batches"]
        self._epoch_start = state["epoch_start"]
        self._live = None
        self.is_broken_off = self.is_in_batch = False
        self.pause(rng)


@contextmanager
def reading(what: str, position: Position, scope: Scope) -> Iterator[None]:
    """Tell an error of the data, which no stage of a batch has seen, from one of the routine."""
    try:
        yield
    except Exception as error:
        if error is not scope.noted and not isinstance(error, EmptyDataError):
            error.add_note(f"while reading batch {position.num_batches} of {what}")
        raise


def empty_error(data: Any, what: str) -> EmptyDataError:
    is_spent = isinstance(data, Iterator)
    return EmptyDataError(
        f"{what} gave no batch",
        where=f"{type(data).__name__}",
        why="an iterator can be gone through once; it is spent" if is_spent else None,
        hint="give an iterable that starts anew each epoch: a list, a DataLoader, an object with __iter__"
        if is_spent
        else "check its length, its sampler, and batch_size with drop_last",
    )


def fresh_iterator(data: Any) -> Iterator[Any]:
    """An iterator with nothing left over from the epoch before.

    Persistent workers carry random numbers over that nobody can read, so workers are started anew each epoch.
    """
    if isinstance(data, DataLoader) and data.persistent_workers:
        return data._get_iterator()
    return iter(data)


def length_of(data: Any) -> int | None:
    """The number of batches, where the data knows it."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def check_length(data: Any, length: int | None) -> None:
    """Refuse data of another length than the captured training had."""
    here = length_of(data)
    if length is not None and here is not None and length != here:
        raise StateError(
            f"train_data has {here} batches, the state was captured with {length}", hint="give the same data, in the same batches"
        )


def start_epoch(data: Any, epoch_index: int) -> None:
    """Tell samplers that shuffle by epoch number which one this is."""
    for part in (getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch_index)  # type: ignore[union-attr]  # callable, as just seen


def _generators(data: Any) -> list[torch.Generator]:
    """The loader's own generators, where it does not use the global one."""
    batch_sampler = getattr(data, "batch_sampler", None)
    parts = (data, getattr(data, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(part, "generator", None) for part in parts)
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def data_state(data: Any) -> dict[str, Any]:
    """What a data source carries from one epoch to the next: its own generators, and its data set's state if it has one."""
    state: dict[str, Any] = {"generators": [generator.get_state() for generator in _generators(data)], "loading": _loading(data)}
    dataset = getattr(data, "dataset", None)
    if callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None)):
        state["dataset"] = own_copy(dataset.state_dict())  # type: ignore[union-attr]  # as above
    return state


def set_data_state(data: Any, state: dict[str, Any]) -> None:
    _check_loading(data, state.get("loading"))
    generators = _generators(data)
    if len(generators) != len(state["generators"]):
        raise StateError(
            f"the data has {len(generators)} generators of its own, the state was captured with {len(state['generators'])}",
            hint="build the loader as it was: same `generator`, same sampler",
        )
    for generator, each in zip(generators, state["generators"], strict=True):
        generator.set_state(each)
    if "dataset" in state:
        data.dataset.load_state_dict(own_copy(state["dataset"]))


def _loading(data: Any) -> dict[str, Any] | None:
    """How a loader makes its batches, as far as that decides what is in them."""
    if not isinstance(data, DataLoader):
        return None
    return {"batch_size": data.batch_size, "drop_last": data.drop_last, "num_workers": data.num_workers}


def _check_loading(data: Any, before: dict[str, Any] | None) -> None:
    """Refuse a loader whose batches would be others. Workers make a difference where loading draws random numbers, or may."""
    now = _loading(data)
    if before is None or now is None:
        return
    is_pure = data.collate_fn is default_collate and _is_pure(data.dataset)
    wrong = [name for name in now if now[name] != before.get(name) and not (name == "num_workers" and is_pure)]
    if wrong:
        raise StateError(
            "the data is loaded in another way than in the training that was captured",
            why="\n".join(f"{name} was {before.get(name)}, and is {now[name]}" for name in wrong),
            hint="build the loader as it was; or start a new training with these weights",
        )


def loading_changes_nothing(data: Any) -> bool:
    """Can batches be skipped without loading them? Only where all code involved is torch's own, and known to keep no state."""
    return (
        type(data) is DataLoader
        and data.num_workers == 0
        and data.batch_sampler is not None
        and data.collate_fn is default_collate
        and _is_pure(data.dataset)
    )


def _is_pure(dataset: Any) -> bool:
    if type(dataset) is Subset:
        return _is_pure(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(_is_pure(each) for each in dataset.datasets)
    return type(dataset) in (TensorDataset, list, tuple)
