"""Restores train/eval mode, grad mode and random state after evaluations and observer hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import TracebackType

import torch
from torch import nn

from trainmaster.loop.rng import RngState, Watch, get_rng, state_of

_training = attrgetter("training")


def restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, is_training in modes:
        module.training = is_training


@contextmanager
def mode(model: nn.Module, *, is_training: bool) -> Iterator[None]:
    """Set train or eval mode in the block, with gradients only in train mode. Then restore the mode of each module."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(is_training)
    try:
        with torch.set_grad_enabled(is_training):
            yield
    finally:
        restore_modes(modes)


class Guards:
    """Creates guards, which are context managers that restore the modes and the random state of a loop.

    `training_rng` returns the random state of training, even while guards are open.
    """

    def __init__(self, model: Callable[[], nn.Module]) -> None:
        self._model = model
        self.modules: tuple[nn.Module, ...] = ()
        self.watch = Watch()
        self._open: list[_Guard] = []
        self._spare: _Guard | None = None

    def forget(self) -> None:
        """Drop guards that an interrupt has left open."""
        self._open.clear()

    def list_modules(self) -> None:
        """Refresh the cached list of the model's modules. Collecting the modules again for every hook would be slow."""
        self.modules = tuple(self._model().modules())
        self._spare = None

    def __call__(self) -> _Guard:
        """Return a guard: `with guards(): ...`. The same object is reused unless guards are nested."""
        guard, self._spare = self._spare, None
        return guard or _Guard(self)

    def training_rng(self) -> RngState:
        """Return the random state that training will continue with, even inside an evaluation or an observer hook."""
        return state_of(self._open[0].rng) if self._open else get_rng()

    def opened(self, guard: _Guard) -> None:
        self._open.append(guard)

    def closed(self, guard: _Guard) -> None:
        if guard in self._open:
            self._open.remove(guard)
        self._spare = guard


class _Guard:
    __slots__ = ("_flags", "_guards", "_has_grad", "_modules", "_watch", "rng")

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._watch = guards.watch

    def __enter__(self) -> None:
        self.rng = self._watch.save()
        self._modules = self._guards.modules
        self._flags = list(map(_training, self._modules))
        self._has_grad = torch.is_grad_enabled()
        self._guards.opened(self)

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._watch.restore(self.rng)
            if torch.is_grad_enabled() != self._has_grad:
                torch.set_grad_enabled(self._has_grad)
            if list(map(_training, self._modules)) != self._flags:
                restore_modes(list(zip(self._modules, self._flags, strict=True)))
        finally:
            self._guards.closed(self)
