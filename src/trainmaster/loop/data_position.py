"""Keeps track of the position in the training data, and can return to it exactly.

A loader's iterator cannot be stored, but the random state at the start of the epoch determines its batches. The loop
therefore keeps this random state. To return to batch k, it restores the state, makes a new iterator, replays the first
k batches, and then sets the random state that training had at batch k. This works for shuffling, for augmentation, and
for loader workers, whose seeds come from the same random state.
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

from trainmaster.errors import EmptyDataError, FixtureError, HookError, StateError
from trainmaster.loop.rng import RngState, get_rng, set_rng
from trainmaster.loop.state import is_stateful, own_copy
from trainmaster.stages.scope import Scope


class Position:
    """Counts the completed batches of the current epoch, and can continue the epoch with the next batch."""

    __slots__ = ("_epoch_start", "_live", "are_grads_spent", "has_failed_batch", "is_in_batch", "num_batches", "paused")

    def __init__(self) -> None:
        self.num_batches = 0
        """The number of completed batches in the current epoch."""
        self.are_grads_spent = True
        """Whether an update has used the gradients, so that the next backward pass starts from zero."""
        self.has_failed_batch = False
        """Whether an error ended the last batch."""
        self.is_in_batch = False
        self._epoch_start: dict[str, Any] | None = None
        self._live: Any = None
        """The data, if it is an iterator. It is already at the right batch, and cannot be read again from the start."""
        self.paused: RngState | None = None
        """The random state to continue with, if training was stopped or restored."""

    def batches(self, data: Any, what: str, own: Any = None, *, is_silent: bool = False) -> Iterator[Any]:
        """Return the remaining batches of this epoch. The caller adds 1 to `num_batches` after each batch.

        With several ranks, the batches are read from `own`, this rank's part of the data.
        """
        own = data if own is None else own
        self.has_failed_batch = False
        if self.num_batches == 0:
            self._epoch_start = {"rng": get_rng(), "data": data_state(data)}
            iterator = fresh_iterator(own)
        else:
            iterator = data if data is self._live else self._replayed(data, what, own, is_silent)
        self._live = data if isinstance(data, Iterator) else None
        return iterator

    def check_end(self, data: Any, what: str) -> None:
        """Raise an error if the epoch had no batches, and warn if it had fewer batches than the length of the data."""
        length = length_of(data)
        if self.num_batches == 0:
            raise empty_error(data, what)
        if length is not None and self.num_batches < length:
            warnings.warn(
                f"{what} ended after {self.num_batches} of {length} batches; does its data set raise StopIteration?", stacklevel=4
            )

    def reset(self) -> None:
        """Go to the start of an epoch."""
        self.num_batches = 0
        self._epoch_start = None

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """If the block raises an error, record that the batch failed and discard its gradients.

        The gradients must not be used, because training may resume by repeating that batch.
        """
        try:
            yield
        except BaseException:
            self.has_failed_batch = True
            self.end_batch()
            raise

    def end_batch(self) -> None:
        """End an unfinished batch, so that the next one does not use its gradients."""
        if self.is_in_batch:
            self.is_in_batch = False
            self.are_grads_spent = True

    def pause(self, rng: RngState) -> None:
        """Save the random state that training will continue with."""
        self.paused = rng

    def wake(self) -> None:
        """Restore the saved random state.

        In the middle of an epoch, `batches` restores it once more, after replaying the completed batches.
        """
        if self.paused is not None:
            set_rng(self.paused)
            if self.num_batches == 0:
                self.paused = None

    def _replayed(self, data: Any, what: str, own: Any, is_silent: bool) -> Iterator[Any]:
        now = self.paused or get_rng()
        self.paused = None
        if self._epoch_start is None:
            raise StateError(
                f"the random state at the start of this epoch of {what} is unknown", hint="restore a state that was captured by trainmaster"
            )
        started = time.monotonic()
        set_rng(self._epoch_start["rng"])
        set_data_state(data, self._epoch_start["data"])
        iterator = fresh_iterator(own)
        is_skipped = loading_changes_nothing(own)
        for done in range(self.num_batches):
            try:
                next(iterator._sampler_iter if is_skipped else iterator)  # type: ignore[attr-defined]  # only a DataLoader is skipped
            except StopIteration:
                raise StateError(
                    f"{what} ended after {done} batches, but {self.num_batches} of this epoch were done",
                    why="the state was captured with different data",
                    hint="use the same data, or start a new training run",
                ) from None
        seconds = time.monotonic() - started
        if not is_silent:
            done_batches = f"1 batch of {what} that was" if self.num_batches == 1 else f"{self.num_batches} batches of {what} that were"
            print(
                f"trainmaster: {'skipped' if is_skipped else 'replayed'} the {done_batches} done in this epoch ({seconds:.1f} s)",
                file=sys.stderr,
            )
        set_rng(now)
        return iterator

    @property
    def epoch_start_rng(self) -> RngState | None:
        """The random state at the start of the current epoch, or None if training is not in the middle of an epoch."""
        return self._epoch_start["rng"] if self._epoch_start is not None and self.num_batches else None

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "epoch_start": self._epoch_start if self.num_batches else None}

    def load_state_dict(self, state: dict[str, Any], rng: RngState) -> None:
        self.num_batches = state["num_batches"]
        self._epoch_start = state["epoch_start"]
        self._live = None
        self.has_failed_batch = self.is_in_batch = False
        self.pause(rng)


@contextmanager
def reading(what: str, position: Position, scope: Scope) -> Iterator[None]:
    """Add a note with the batch number to errors that occur while a batch is being read. Errors in stages already have a note."""
    try:
        yield
    except Exception as error:
        is_about_hooks = isinstance(error, (HookError, FixtureError))  # for an extension attached after the last batch
        if error is not scope.explained and not is_about_hooks and not isinstance(error, EmptyDataError):
            error.add_note(f"while reading batch {position.num_batches} of {what}")
        raise


def empty_error(data: Any, what: str) -> EmptyDataError:
    is_exhausted = isinstance(data, Iterator)
    return EmptyDataError(
        f"{what} has no batches",
        where=f"{type(data).__name__}",
        why="it is an iterator, which can be read only once, and it is exhausted" if is_exhausted else None,
        hint="pass an iterable that restarts each epoch: a list, a DataLoader, an object with __iter__"
        if is_exhausted
        else "check its length, its sampler, and batch_size with drop_last",
    )


def fresh_iterator(data: Any) -> Iterator[Any]:
    """Return a new iterator that has no state from the previous epoch.

    Persistent workers would carry over random states that cannot be read, so workers are restarted each epoch.
    """
    if isinstance(data, DataLoader) and data.persistent_workers:
        return data._get_iterator()
    return iter(data)


def length_of(data: Any) -> int | None:
    """Return the number of batches, or None if the data has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def check_length(data: Any, length: int | None) -> None:
    """Raise an error if the state was captured with data of a different length."""
    here = length_of(data)
    if length is not None and here is not None and length != here:
        raise StateError(
            f"train_data has {here} batches, but the state was captured with {length}",
            hint="use the same data, in the same batches; if an extension changes their number, its `load_state_dict` must do so too",
        )


def start_epoch(data: Any, epoch_index: int) -> None:
    """Pass the epoch number to samplers that use it to shuffle."""
    for part in (getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch_index)  # type: ignore[union-attr]  # checked on the line above


def _generators(data: Any) -> list[torch.Generator]:
    """Return the random generators that were passed to the loader or its samplers.

    A loader or sampler without its own generator uses torch's global one.
    """
    batch_sampler = getattr(data, "batch_sampler", None)
    parts = (data, getattr(data, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(part, "generator", None) for part in parts)
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def data_state(data: Any) -> dict[str, Any]:
    """Return the states of the loader's random generators, the loader's settings, and the data set's state if it has a `state_dict`."""
    state: dict[str, Any] = {"generators": [generator.get_state() for generator in _generators(data)], "loading": _loading(data)}
    dataset = getattr(data, "dataset", None)
    if is_stateful(dataset):
        state["dataset"] = own_copy(dataset.state_dict())
    return state


def set_data_state(data: Any, state: dict[str, Any]) -> None:
    _check_loading(data, state.get("loading"))
    generators = _generators(data)
    if len(generators) != len(state["generators"]):
        raise StateError(
            f"the data has {len(generators)} generators of its own, but the state was captured with {len(state['generators'])}",
            hint="build the loader in the same way: same `generator`, same sampler",
        )
    for generator, each in zip(generators, state["generators"], strict=True):
        generator.set_state(each)
    if "dataset" in state:
        data.dataset.load_state_dict(own_copy(state["dataset"]))


def _loading(data: Any) -> dict[str, Any] | None:
    """Return the settings of a loader that determine its batches, or None for data of another type."""
    if not isinstance(data, DataLoader):
        return None
    return {"batch_size": data.batch_size, "drop_last": data.drop_last, "num_workers": data.num_workers}


def _check_loading(data: Any, before: dict[str, Any] | None) -> None:
    """Raise an error if the loader would produce different batches than before.

    A different number of workers is an error only if loading may draw random numbers.
    """
    now = _loading(data)
    if before is None or now is None:
        return
    is_pure = data.collate_fn is default_collate and _is_pure(data.dataset)
    wrong = [name for name in now if now[name] != before.get(name) and not (name == "num_workers" and is_pure)]
    if wrong:
        raise StateError(
            "the data is loaded differently than in the captured training run",
            why="\n".join(f"{name} was {before.get(name)}, and is now {now[name]}" for name in wrong),
            hint="build the loader in the same way, or start a new training run with these weights",
        )


def loading_changes_nothing(data: Any) -> bool:
    """Return whether batches can be skipped without loading them. This is safe if only stateless torch code loads them."""
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
