"""Running a model any number of times as if it had never run: each pass starts alike, and in the end everything is as it was."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from trainmaster.extensions.example_batch import rebuilt
from trainmaster.loop.batches import tensors_in
from trainmaster.loop.guard import put_back_modes
from trainmaster.loop.rng import get_rng, set_rng

_RANDOM_LAYERS = (_DropoutNd, nn.RNNBase, nn.MultiheadAttention)


class Snapshot:
    """Modules as they are now: parameters, gradients, buffers and plain attributes, by reference and by content."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._attributes = [(vars(module), dict(vars(module))) for module in self._modules]
        self._containers = [
            (value, value.copy())
            for _, attributes in self._attributes
            for name, value in attributes.items()
            if type(value) in (list, dict) and "hooks" not in name
        ]
        held = {id(tensor): tensor for tensor in self._tensors()}
        self._gradients = [(tensor, tensor.grad) for tensor in held.values() if tensor.is_leaf]
        held |= {id(gradient): gradient for _, gradient in self._gradients if gradient is not None}
        self._contents = [(tensor, tensor.detach().clone()) for tensor in held.values() if not _is_hollow(tensor)]

    def _tensors(self) -> Iterator[torch.Tensor]:
        for module in self._modules:
            yield from itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
        for value in itertools.chain(*(attributes.values() for _, attributes in self._attributes)):
            items = value if type(value) in (list, tuple) else value.values() if isinstance(value, dict) else (value,)
            yield from (item for item in items if isinstance(item, torch.Tensor))

    def take_anew(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep what these tensors hold now."""
        known = {id(tensor) for tensor in tensors}
        self._contents = [(tensor, tensor.detach().clone() if id(tensor) in known else content) for tensor, content in self._contents]

    def put_back(self) -> None:
        for attributes, before in self._attributes:
            for name in [name for name in attributes if name not in before]:
                del attributes[name]
            attributes.update((name, value) for name, value in before.items() if attributes.get(name, self) is not value)
        for container, items in self._containers:
            if isinstance(container, list):
                container[:] = items
            elif list(map(id, container.values())) != list(map(id, items.values())) or list(container) != list(items):
                container.clear()
                container.update(items)
        for tensor, content in self._contents:
            if not torch.equal(tensor, content):
                tensor.data.copy_(content)  # by `data`: graphs that were built meanwhile stay valid
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient


def _is_hollow(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided or is_lazy(tensor)


class Rehearsal:
    """Runs a model so that passes differ by nothing but their batches, and leaves no trace.

    Dropout is off: its draws could depend on how many examples go which way. Batch norm uses the statistics of one first pass, for ever;
    it would mix examples on purpose. Modules that are `allowed` to mix do so, but each example that was not replaced gets what it got in
    the first pass. Their gradients pass straight through.
    """

    def __init__(self, model: nn.Module, allowed: Collection[nn.Module], also: Iterable[nn.Module] = ()) -> None:
        modules = dict.fromkeys(itertools.chain(model.modules(), *(each.modules() for each in also)))
        norms = [each for each in modules if isinstance(each, _BatchNorm) and each.training and each not in allowed]
        self._modules = list(modules)
        self._norms = [each for each in norms if each.running_mean is not None]
        self._allowed = [*(each for each in modules if each in allowed), *(each for each in norms if each.running_mean is None)]
        self._embeddings = [each for each in modules if isinstance(each, (nn.Embedding, nn.EmbeddingBag))]
        self._kept: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._calls: dict[int, int] = {}
        self.chosen: list[bool] | None = None
        self.embedded: list[torch.Tensor] = []
        """What the embeddings of the running pass gave."""
        self.num_passes = 0

    @contextmanager
    def open(self) -> Iterator[Rehearsal]:
        """Where passes may run; everything is put back on the way out, whatever happened."""
        rng, modes = get_rng(), [(module, module.training) for module in self._modules]
        momenta = [(norm, norm.momentum) for norm in self._norms]
        statistics = [(buffer, buffer.detach().clone()) for norm in self._norms for buffer in norm.buffers(recurse=False)]
        for module in self._modules:
            if isinstance(module, _RANDOM_LAYERS):
                module.training = False
        for norm in self._norms:
            norm.training, norm.momentum = False, 1.0
        handles = [module.register_forward_hook(self._let_mix) for module in self._allowed]
        handles += [module.register_forward_hook(self._note) for module in self._embeddings]
        self._rng, self._start = rng, Snapshot(self._modules)
        try:
            with warnings.catch_warnings(), torch.enable_grad(), _eager():
                warnings.simplefilter("ignore")  # the training itself gives them
                yield self
        finally:
            self._start.put_back()
            for handle in handles:
                handle.remove()
            for buffer, content in statistics:
                buffer.data.copy_(content)
            for norm, momentum in momenta:
                norm.momentum = momentum
            put_back_modes(modes)
            set_rng(rng)

    def calibrate(self, forward: Callable[[], Any]) -> None:
        """Let every batch norm take the statistics of this pass, and keep them."""
        norms = [norm for norm in self._norms if not isinstance(norm, nn.SyncBatchNorm)]  # that one would wait for other processes
        if not norms:
            return
        self._start.put_back()
        for norm in norms:
            norm.training = True  # until the next pass starts
        self.run(forward, None, is_start=False)
        self._start.take_anew(buffer for norm in norms for buffer in norm.buffers(recurse=False))

    def run(self, forward: Callable[[], Any], chosen: list[bool] | None, *, is_start: bool = True) -> Any:
        """One pass, with the `chosen` examples replaced by the caller; None is the pass that the others are compared to."""
        if is_start:
            self._start.put_back()
        set_rng(self._rng)
        self._calls, self.embedded, self.chosen = {}, [], chosen
        if chosen is None:
            self._kept = {}
        self.num_passes += 1
        return forward()

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            self.embedded.append(output)

    def _let_mix(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        call = self._calls[id(module)] = self._calls.get(id(module), 0) + 1
        given = next(iter(tensors_in(inputs)), None)
        count = itertools.count()

        def without_mixing(tensor: torch.Tensor) -> torch.Tensor:
            key = (id(module), call, next(count))
            if self.chosen is None:
                self._kept[key] = (tensor.detach().clone(), None if given is None else given.detach().clone())
                return _Straight.apply(tensor.detach(), given)  # type: ignore[no-untyped-call, no-any-return]
            first, first_given = self._kept.get(key, (tensor, None))
            return _Straight.apply(self._separated(tensor.detach(), first, given, first_given), given)  # type: ignore[no-untyped-call, no-any-return]

        return rebuilt(output, None, without_mixing, without_mixing)

    def _separated(
        self, new: torch.Tensor, first: torch.Tensor, given: torch.Tensor | None, first_given: torch.Tensor | None
    ) -> torch.Tensor:
        """`new` for the examples that were replaced, `first` for the others."""
        assert self.chosen is not None
        if new.shape != first.shape:
            return new
        axis = next((axis for axis, size in enumerate(new.shape) if size == len(self.chosen)), None)
        if axis is not None:
            rows = torch.tensor(self.chosen, device=new.device)
        elif (
            given is not None
            and first_given is not None
            and new.ndim
            and given.shape == first_given.shape
            and given.shape[:1] == new.shape[:1]
        ):
            axis, rows = 0, (given.detach() != first_given).flatten(1).any(1) if given.ndim > 1 else given.detach() != first_given
        else:
            return first
        return torch.where(rows.view([-1 if each == axis else 1 for each in range(new.ndim)]), new, first)


class _Straight(torch.autograd.Function):
    """A value whose gradient goes to another tensor of its shape, as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
        ctx.is_open = given is not None and given.shape == value.shape
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        return None, gradient if ctx.is_open else None


@contextmanager
def _eager() -> Iterator[None]:
    """Compiled models run as they are written: other sizes would compile them anew, and no line could be named."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
