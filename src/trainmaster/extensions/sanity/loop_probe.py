"""Runs forward passes, losses and optimizer steps of a loop, and undoes their effects afterwards."""

from __future__ import annotations

import copy
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from trainmaster.extensions.example_batch import map_batch
from trainmaster.extensions.isolated_forward import ModuleSnapshot
from trainmaster.loop import TrainManager
from trainmaster.loop.batches import to_device
from trainmaster.loop.data_position import data_state, fresh_iterator, set_data_state
from trainmaster.loop.observer_guard import mode
from trainmaster.loop.rng import get_rng, set_rng
from trainmaster.loop.state import stateful_attributes
from trainmaster.loop.writer import MemoryWriter

_NUM_BATCHES: Final = 8
"""How many batches of the training data, and of the first evaluation set, the checks use."""
_READING_TIME: Final = 5.0
"""The time limit for reading batches, in seconds. The first batch is read no matter how long it takes."""
_PLAIN: Final = (int, float, bool, str, bytes, type(None))


class LoopSnapshot:
    """Saves and restores the modules, random number generators, data positions and plain attributes of a loop.

    The loop's own `capture()` and `restore()` cannot be used instead, for two reasons: inside `train()`, they are not
    allowed before the first batch, and an optimizer casts the state it loads to the precision of its parameters. The
    optimizer itself does not need to be saved, because the checks use copies of it.
    """

    def __init__(self, loop: TrainManager) -> None:
        self._loop = loop
        self._rng = get_rng()
        roots = [each for each in stateful_attributes(loop).values() if isinstance(each, nn.Module)]
        self._modules = ModuleSnapshot(dict.fromkeys(module for root in roots for module in root.modules()))
        self._data = [(data, data_state(data)) for data in (loop.train_data, *loop.eval_data.values())]
        self._attributes = {name: value for name, value in vars(loop).items() if not name.startswith("_") and type(value) in _PLAIN}
        self._names = {*vars(loop)}

    def restore(self) -> None:
        self._modules.restore()
        for data, state in self._data:
            set_data_state(data, state)
        for name in [name for name in vars(self._loop) if name not in self._names]:
            delattr(self._loop, name)
        for name, value in self._attributes.items():
            if getattr(self._loop, name) is not value:
                setattr(self._loop, name, value)
        set_rng(self._rng)


class LoopProbe:
    """Provides the checks with a loop and its first batches, and undoes the effects of a check."""

    def __init__(self, loop: TrainManager, allow: tuple[type[nn.Module] | str, ...]) -> None:
        self.loop = loop
        self.allow = allow
        """The modules that may mix samples, for the leakage check."""
        self.batches = _first_batches(loop.train_data, loop.device)
        self.eval_batches = _first_batches(next(iter(loop.eval_data.values()), ()), loop.device)
        """The first batches of the first evaluation set."""
        self._snapshot = LoopSnapshot(loop)

    @classmethod
    @contextmanager
    def open(cls, loop: TrainManager, allow: tuple[type[nn.Module] | str, ...]) -> Iterator[LoopProbe]:
        """Build and initialize the loop as `train()` would, with a writer that writes nothing, and restore it on exit.

        Two changes remain, as after `capture()`: the model has been moved to its device, and the optimizer has been
        created.
        """
        loop.build()
        snapshot, writer = LoopSnapshot(loop), loop.writer
        loop.configure(writer=MemoryWriter())
        try:
            if not loop.has_begun:
                loop.fixtures(loop.initialize_params)
            yield cls(loop, allow)
        finally:
            loop.configure(writer=writer)
            snapshot.restore()

    def restore(self) -> None:
        """Undo the effects of all forward passes and optimizer steps."""
        self._snapshot.restore()

    @contextmanager
    def train_mode(self, has_dropout: bool = True) -> Iterator[None]:
        with mode(self.loop.model, is_training=True):
            for module in self.loop.model.modules():
                if isinstance(module, _DropoutNd) and not has_dropout:
                    module.training = False
            yield

    def compute_loss(self, batch: Any) -> tuple[Any, torch.Tensor]:
        """Compute the prediction and the loss as in training. The model gets a copy of the batch, in case it modifies the batch."""
        batch = clone_batch(batch)
        prediction = self.loop.train_model_forward(batch)
        return prediction, self.loop.train_loss_forward(batch, prediction)

    @property
    def optimizer_problem(self) -> str | None:
        """The reason why the checks cannot take optimizer steps, or None if they can."""
        if self.loop.optimizer is None:
            return "the loop has no optimizer"
        if isinstance(self.loop.optimizer, torch.optim.LBFGS):
            return "LBFGS needs a closure for its steps"
        return None

    def copy_optimizer(self, lr_factor: float = 1.0) -> Optimizer:
        """Return a copy of the loop's optimizer without its state. The learning rate is the initial one multiplied by `lr_factor`."""
        assert self.loop.optimizer is not None
        memo: dict[int, Any] = {id(each): each for group in self.loop.optimizer.param_groups for each in group["params"]}
        memo[id(self.loop.optimizer.state)] = defaultdict(dict)
        optimizer = copy.deepcopy(self.loop.optimizer, memo)  # with this memo, the copy shares the parameters and has no state
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"]) * lr_factor
        return optimizer


def _first_batches(data: Any, device: torch.device) -> tuple[Any, ...]:
    """Return copies of the first batches. For an iterator, which can be read only once, the result is empty."""
    if isinstance(data, Iterator):
        return ()
    deadline, batches = time.monotonic() + _READING_TIME, []
    for batch in itertools.islice(fresh_iterator(data), _NUM_BATCHES):
        batches.append(clone_batch(to_device(batch, device)))
        if time.monotonic() >= deadline:
            break
    return tuple(batches)


def clone_batch(batch: Any) -> Any:
    return map_batch(batch, torch.clone)
