"""A loop to try things on: its first batches, its forward pass, its loss and an optimizer like its own, all put back afterwards."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from trainmaster.errors import SettingError
from trainmaster.extensions.example_batch import count_examples, rebuilt, take
from trainmaster.extensions.rehearsal import Snapshot
from trainmaster.loop import TrainManager
from trainmaster.loop.batches import to_device
from trainmaster.loop.guard import mode
from trainmaster.loop.position import data_state, fresh_iterator, set_data_state
from trainmaster.loop.rng import get_rng, set_rng
from trainmaster.loop.state import stateful_attributes
from trainmaster.loop.writer import MemoryWriter

Labels = int | str | None

NUM_BATCHES: Final = 8
"""How many batches of the training data, and of an evaluation set, are looked at."""
_READING_TIME: Final = 5.0
"""Seconds; the first batch is waited for, however long it takes."""
_PLAIN: Final = (int, float, bool, str, bytes, type(None))


class Kept:
    """A loop as it is now: modules, random numbers, data and its own plain attributes.

    `capture()` and `restore()` are not for this: they are refused within `train()`, and an optimizer rounds the state that it loads to the
    precision of its parameters. The optimizer is never stepped here; copies of it are.
    """

    def __init__(self, loop: TrainManager) -> None:
        self._loop = loop
        self._rng = get_rng()
        self._modules = Snapshot(modules_of(loop))
        self._data = [(data, data_state(data)) for data in (loop.train_data, *loop.eval_data.values())]
        self._attributes = {name: value for name, value in vars(loop).items() if not name.startswith("_") and type(value) in _PLAIN}
        self._names = {*vars(loop)}

    def put_back(self) -> None:
        self._modules.put_back()
        for data, state in self._data:
            set_data_state(data, state)
        for name in [name for name in vars(self._loop) if name not in self._names]:
            delattr(self._loop, name)
        for name, value in self._attributes.items():
            if getattr(self._loop, name) is not value:
                setattr(self._loop, name, value)
        set_rng(self._rng)


def modules_of(loop: TrainManager) -> list[nn.Module]:
    """Every module that the loop holds, its loss among them, each once."""
    roots = [each for each in stateful_attributes(loop).values() if isinstance(each, nn.Module)]
    return list(dict.fromkeys(module for root in roots for module in root.modules()))


@contextmanager
def undisturbed(loop: TrainManager) -> Iterator[None]:
    """Where a loop may be tried out: built and initialised, as `train()` would do it, with a writer that nobody reads.

    On the way out it is as it was, but for what `capture()` does too: the model is on its device, the optimizer is made.
    """
    loop.build()
    kept, writer = Kept(loop), loop.writer
    loop.settle(writer=MemoryWriter())
    try:
        if not loop.has_begun:
            loop.fixtures(loop.initialize_params)
        yield
    finally:
        loop.settle(writer=writer)
        kept.put_back()


@dataclasses.dataclass(frozen=True)
class Scene:
    """What all checks look at."""

    loop: TrainManager
    batches: tuple[Any, ...]
    """The first batches of the training data, on the device; copies, so that a forward pass may write to them."""
    eval_batches: tuple[Any, ...]
    """Those of the first evaluation set."""
    labels: Labels
    """Where the labels are in a batch, if somebody said so."""
    allow: tuple[Any, ...]
    """What may mix samples, for the leakage check."""
    kept: Kept

    @classmethod
    def of(cls, loop: TrainManager, labels: Labels, allow: Iterable[Any]) -> Scene:
        batches = first_batches(loop.train_data, loop.device)
        evaluated = next(iter(loop.eval_data.values()), ())
        kept = Kept(loop)
        scene = cls(loop, batches, first_batches(evaluated, loop.device), labels, tuple(allow), kept)
        if labels is not None:
            for batch in batches[:1]:
                scene.check_labels(batch)
        return scene

    @property
    def why_not(self) -> str | None:
        """Why nothing can be tried, if so."""
        if isinstance(self.loop.train_data, Iterator):
            return "train_data is an iterator, which can be gone through once"
        return None if self.batches else "train_data gave no batch"

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A check, after which all is as before it."""
        try:
            yield
        finally:
            self.kept.put_back()

    def renew(self) -> None:
        """Begin again, in the middle of a check."""
        self.kept.put_back()

    # Passes.

    @contextmanager
    def training(self, has_dropout: bool = True) -> Iterator[None]:
        with mode(self.loop.model, is_training=True):
            for module in self.loop.model.modules():
                if isinstance(module, _DropoutNd) and not has_dropout:
                    module.training = False
            yield

    def loss_of(self, batch: Any) -> tuple[Any, torch.Tensor]:
        """The prediction and the loss, as in training; the batch stays as it is."""
        own = cloned(batch)
        prediction = self.loop.train_model_forward(own)
        return prediction, self.loop.train_loss_forward(own, prediction)

    def eval_loss_of(self, batch: Any) -> tuple[Any, torch.Tensor]:
        """The prediction and the loss, as in an evaluation; in the mode and with the gradients that there are."""
        own = cloned(batch)
        prediction = self.loop.eval_model_forward(own)
        return prediction, self.loop.eval_loss_forward(own, prediction)

    def train_on(self, batches: Iterable[Any], until: float, factor: float = 1.0, has_dropout: bool = True) -> Iterator[float]:
        """Steps with an optimizer like the loop's, its rate times `factor`, until a moment of the monotonic clock; the loss before each."""
        optimizer = self.optimizer(factor)
        with self.training(has_dropout):
            for batch in batches:
                optimizer.zero_grad()
                self.loop.model.zero_grad()
                _, loss = self.loss_of(batch)
                yield float(loss.detach())
                self.loop.backward(loss)
                optimizer.step()
                if time.monotonic() >= until:
                    return

    def optimizer(self, factor: float = 1.0) -> Optimizer:
        """A new optimizer like the loop's, for the same parameters; at the rate that it had before any schedule."""
        assert self.loop.optimizer is not None
        memo: dict[int, Any] = {id(each): each for group in self.loop.optimizer.param_groups for each in group["params"]}
        memo[id(self.loop.optimizer.state)] = defaultdict(dict)
        made = copy.deepcopy(self.loop.optimizer, memo)  # which takes what the memo has: the same parameters, and no state
        for group in made.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"]) * factor
        return made

    @property
    def why_no_optimizer(self) -> str | None:
        """Why no step can be tried, if so."""
        if self.loop.optimizer is None:
            return "the loop has no optimizer of its own"
        if isinstance(self.loop.optimizer, torch.optim.LBFGS):
            return "LBFGS takes its steps in another way"
        return None

    # Batches.

    def labels_of(self, batch: Any) -> torch.Tensor | None:
        """The labels: where `labels` says, else the second of two."""
        found = self._at(batch) if self.labels is not None else batch[1] if _is_pair(batch) else None
        num = count_examples(batch)
        return found if isinstance(found, torch.Tensor) and found.ndim and found.shape[0] == num else None

    @property
    def label_name(self) -> str:
        return f"batch[{1 if self.labels is None else self.labels!r}]"

    def with_labels(self, batch: Any, labels: torch.Tensor) -> Any:
        """The batch with other labels."""
        key = 1 if self.labels is None else self.labels
        if isinstance(batch, Mapping):
            pairs = {**batch, key: labels}
            return pairs if type(batch) is dict else type(batch)(pairs)  # type: ignore[call-arg]  # a mapping built from a dict
        if isinstance(key, str):
            return batch._replace(**{key: labels}) if hasattr(batch, "_replace") else dataclasses.replace(batch, **{key: labels})
        items = [labels if number == key % len(batch) else each for number, each in enumerate(batch)]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)

    def without_labels(self, sample: Any) -> Any:
        """The inputs of a sample or a batch; all of it where its labels are not known."""
        if self.labels is None:
            return sample[0] if _is_pair(sample) else sample
        try:
            labels = self._at(sample)
        except (KeyError, IndexError, AttributeError, TypeError):  # a sample need not look like a batch
            return sample
        if isinstance(sample, Mapping):
            return {name: each for name, each in sample.items() if name != self.labels}
        if isinstance(sample, (tuple, list)):
            return [each for each in sample if each is not labels]
        return [getattr(sample, each.name) for each in dataclasses.fields(sample) if each.name != self.labels]

    def _at(self, batch: Any) -> Any:
        is_field = isinstance(self.labels, str) and not isinstance(batch, Mapping)
        return getattr(batch, str(self.labels)) if is_field else batch[self.labels]

    def check_labels(self, batch: Any) -> None:
        """Refuse `labels` that name nothing in the batch."""
        try:
            self._at(batch)
        except (KeyError, IndexError, AttributeError, TypeError):
            names = (
                ", ".join(map(str, batch)) if isinstance(batch, Mapping) else f"0 to {len(batch) - 1}" if hasattr(batch, "__len__") else ""
            )
            raise SettingError(
                f"labels={self.labels!r}: the batch, a {type(batch).__name__}, has no such part", known=names, hint="labels=1, labels='y'"
            ) from None


def first_batches(data: Any, device: torch.device) -> tuple[Any, ...]:
    """Copies of the first batches; none of data that can be gone through only once."""
    if isinstance(data, Iterator):
        return ()
    until, found = time.monotonic() + _READING_TIME, []
    for batch in itertools.islice(fresh_iterator(data), NUM_BATCHES):
        found.append(cloned(to_device(batch, device)))
        if time.monotonic() >= until:
            break
    return tuple(found)


def cloned(batch: Any) -> Any:
    """The batch with tensors of its own."""
    return rebuilt(batch, None, torch.clone, torch.clone)


def few_of(batch: Any, size: int) -> Any:
    """At most `size` samples of a batch."""
    num = count_examples(batch)
    return batch if num is None or num <= size else take(batch, num, size)


def is_lazy_model(loop: TrainManager) -> bool:
    """Whether the model makes parameters in its first forward pass, which cannot be undone."""
    return any(is_lazy(each) for each in (*loop.model.parameters(), *loop.model.buffers()))


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2
