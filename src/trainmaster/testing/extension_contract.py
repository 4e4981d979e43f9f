"""The contract for extensions, written as tests that pytest collects from a subclass."""

from __future__ import annotations

import json
import reprlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.loop import TrainingState, TrainManager
from trainmaster.loop.rng import get_rng, seed_rng
from trainmaster.loop.state import Stateful, own_copy
from trainmaster.stages import Extension
from trainmaster.store.codec import decode, encode, kinds
from trainmaster.store.tensors import chunks, read


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, batch: list[torch.Tensor]) -> Any:
        return self.layers(batch[0])


def _loss(batch: list[torch.Tensor], prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


_RESUMED_AT = (8, 15)
"""The batches, out of 18, after which training is resumed.

The second one is for extensions whose state appears only late in training.
"""


class _CaptureAt(Extension):
    def __init__(self, *batches: int) -> None:
        self.batches = batches
        self.num_batches = 0
        self.states: dict[int, TrainingState] = {}

    def post_train_step_batch(self, train_manager: TrainManager) -> None:
        self.num_batches += 1  # counts batches, not steps, because an extension may accumulate gradients
        if self.num_batches in self.batches:
            self.states[self.num_batches] = train_manager.capture()


class ExtensionContract:
    """Tests for your extension: write `class TestMyExtension(ExtensionContract)` and override `make`.

    The tests train with dropout, a shuffled loader and an evaluation set, and take much less than a second. The model has
    the parameters `layers.0.weight`, `layers.0.bias`, `layers.3.weight` and `layers.3.bias`. If your extension needs
    a different model, different data or other options, override `loop`.
    """

    has_reproducible_metrics: ClassVar[bool] = True
    """Set this to False if your extension logs or saves times or other values that differ between two identical training runs."""
    unsaved_attributes: ClassVar[Collection[str]] = ()
    """The names of attributes that may differ after a resume, such as caches, or counts since the start of the process."""

    def make(self) -> object:
        """Create the extension to test."""
        raise NotImplementedError(f"override {type(self).__name__}.make so that it returns the extension to test")

    def loop(self, *extensions: object) -> TrainManager:
        """Return a loop for a small, reproducible classification task, with these extensions attached in order."""
        torch.manual_seed(0)
        inputs = torch.randn(48, 6)
        data = TensorDataset(inputs, inputs[:, :3].argmax(1))
        loaders = DataLoader(data, 8, shuffle=True), {"valid": DataLoader(data, 20)}
        return TrainManager(_Model(), _loss, 3, *loaders, extensions=list(extensions), progress=False)

    def test_training_with_it_finishes(self) -> None:
        loop = self.loop(self.make())
        loop.train()
        assert loop.epoch_num == 3, _ended_early(loop, 3)

    def test_it_can_train_again_in_the_same_process(self) -> None:
        loop = self.loop(self.make())
        loop.train()
        loop.epochs = 4
        loop.train()
        assert loop.epoch_num == 4, _ended_early(loop, 4)

    def test_an_observer_changes_neither_weights_nor_random_numbers(self) -> None:
        extension = self.make()
        name = type(extension).__name__
        if not getattr(extension, "is_observer", False):
            pytest.skip(f"{name} is not an Observer; inherit from Observer if it only reads")
        results = []
        for extensions in ([], [extension]):
            seed_rng(0)
            loop = self.loop(*extensions)
            loop.train()
            results.append((loop.model.state_dict(), get_rng()))
        (weights, rng), (observed_weights, observed_rng) = results
        assert not (found := differences(weights, observed_weights)), f"{name} is an observer, but with it {_listed(found)}"
        assert same_bits(rng, observed_rng), f"{name} is an observer, but it draws random numbers or sets a seed"

    def test_training_with_it_resumes_bit_for_bit(self) -> None:
        for batch, whole, resumed in self._resumed_trainings():
            found = self._differences(whole.loop, resumed.loop)
            if found:
                found = self._without_changing_states(found, whole.loop)
            names = resumed.loop.extensions
            forgotten = [each for name in names for each in _forgotten_by(names[name], whole.loop[name]).values()]
            hint = f"\nchanged in training, but not in `state_dict`: {', '.join(forgotten)}" if forgotten else ""
            assert not found, f"after resuming at batch {batch}, {_listed(found)}{hint}"

    def test_its_attributes_are_the_same_after_resuming(self) -> None:
        for batch, whole, resumed in self._resumed_trainings():
            forgotten = _forgotten_by(resumed.extension, whole.extension)
            found = {name: text for name, text in forgotten.items() if name not in self.unsaved_attributes}
            if found:  # these attributes may differ between any two training runs, as times do
                always = _forgotten_by(self._train().extension, whole.extension)
                found = {name: text for name, text in found.items() if name not in always}
            assert not found, (
                f"after resuming at batch {batch}, these attributes differ: {_listed(list(found.values()))}\n"
                f"save them in `state_dict`; if they may differ, list them in the test class: unsaved_attributes = {tuple(found)}"
            )

    def _resumed_trainings(self) -> Iterator[tuple[int, _Training, _Training]]:
        """Train once without an interruption, and then resume training from each captured state.

        For each state, yield the number of the batch at which it was captured, the uninterrupted training run and the resumed one.
        """
        capture = _CaptureAt(*_RESUMED_AT)
        whole = self._train(capture)
        for batch in _RESUMED_AT:
            assert batch in capture.states, f"training ended before batch {batch}; `loop` has to train longer"
            yield batch, whole, self._train(state=_from_checkpoint(capture.states[batch]))

    def _train(self, *others: object, state: TrainingState | None = None) -> _Training:
        extension = self.make()
        loop = self.loop(extension, *others)
        if state is not None:
            loop.restore(state)
        loop.train()
        return _Training(loop, extension)

    def _differences(self, whole: TrainManager, other: TrainManager) -> list[str]:
        found = differences(whole.model.state_dict(), other.model.state_dict())
        if self.has_reproducible_metrics:
            found += [f"metric {each}" for each in differences(_history_of(whole), _history_of(other))]
        return found + _differing_states(whole, other)

    def _without_changing_states(self, found: list[str], whole: TrainManager) -> list[str]:
        """Return the differences in `found`, except for states that may change from one training run to the next.

        Raise an error if anything else differs between two uninterrupted training runs, because then a
        resumed run cannot match them either.
        """
        again = self._train().loop
        allowed = [] if self.has_reproducible_metrics else _differing_states(whole, again)
        always = [each for each in self._differences(whole, again) if each not in allowed]
        hint = "if your extension logs or saves times, set has_reproducible_metrics = False in the test class"
        if differences(whole.model.state_dict(), again.model.state_dict()):
            hint = "`loop` must create the same model and data each time: call torch.manual_seed(0) at its start"
        assert not always, f"training is not reproducible: in two trainings without an interruption, {_listed(always)}\n{hint}"
        return [each for each in found if each not in allowed]


class _Training(NamedTuple):
    loop: TrainManager
    extension: object


def _from_checkpoint(state: TrainingState) -> TrainingState:
    """Return the state as a checkpoint restores it. Raise an error if it contains values that cannot be saved."""
    encoded = encode(state.to_dict())
    tree = json.loads(json.dumps(encoded.tree))
    return TrainingState.from_dict(decode(tree, read(b"".join(chunks(encoded.tensors)), *kinds(tree))))


def _differing_states(whole: TrainManager, other: TrainManager) -> list[str]:
    """Describe the values that differ in the states of the extensions of two loops."""
    pairs = {name: (whole[name], extension) for name, extension in other.extensions.items() if isinstance(extension, Stateful)}
    return [f"the state of `{name}`: {each}" for name, (one, two) in pairs.items() for each in differences(_state_of(one), _state_of(two))]


def _ended_early(loop: TrainManager, epochs: int) -> str:
    return (
        f"training ended after {loop.epoch_num} of {epochs} epochs, at step {loop.step_num}\n"
        "if the extension stops training, create it in `make` so that it does not stop this one"
    )


def _history_of(loop: TrainManager) -> dict[str, Any]:
    """Return the metrics that were logged, or an empty dict if the loop's writer keeps no history."""
    return dict(getattr(loop.writer, "history", {}))


def _state_of(extension: object) -> dict[str, Any]:
    """Return a copy of the extension's state. If the state is not a dict, it is wrapped in one under the key `state_dict`."""
    state = own_copy(extension.state_dict()) if isinstance(extension, Stateful) else {}
    return state if isinstance(state, dict) else {"state_dict": state}


def _forgotten_by(extension: object, other: object) -> dict[str, str]:
    """Describe the attributes that differ between `extension`, which was resumed, and `other`, which was not.

    Attributes that are in `state_dict`, possibly without a leading `_`, are left out.
    """
    saved = _state_of(extension)
    values, others = getattr(extension, "__dict__", {}), getattr(other, "__dict__", {})
    pairs = {key: (values.get(key), others.get(key)) for key in {**values, **others} if not {key, key.removeprefix("_")} & {*saved}}
    return {
        key: f"`{type(extension).__name__}.{key}` (it is {reprlib.repr(value)}, and {reprlib.repr(whole)} without the interruption)"
        for key, (value, whole) in pairs.items()
        if _is_plain(value) and _is_plain(whole) and not same_bits(value, whole)
    }


_PLAIN = (int, float, str, list, tuple, dict, set, deque, torch.Tensor, np.ndarray, np.generic, type(None))


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers, strings, tensors and containers, which can be compared by value."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return isinstance(value, _PLAIN) and (not isinstance(value, (list, tuple, set, deque)) or all(map(_is_plain, value)))


def _listed(found: list[str]) -> str:
    more = len(found) - _MAX_LISTED
    return "; ".join(found[:_MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")


_MAX_LISTED = 8


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a line for each key whose values are not equal bit for bit, such as "`layers.0.weight` differs"."""
    return [
        f"`{key}` differs" if key in one and key in other else f"`{key}` is {'missing' if key in one else 'new'}"
        for key in {**one, **other}
        if not (key in one and key in other and same_bits(one[key], other[key]))
    ]


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        is_like = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return is_like and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other) or (one != one and other != other)
