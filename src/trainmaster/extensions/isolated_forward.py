"""Runs a model repeatedly from the same state, and restores that state at the end."""

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

from trainmaster.extensions.example_batch import map_batch
from trainmaster.loop.batches import tensors_in
from trainmaster.loop.observer_guard import restore_modes
from trainmaster.loop.rng import get_rng, set_rng

_RANDOM_LAYERS = (_DropoutNd, nn.RNNBase, nn.MultiheadAttention)


class ModuleSnapshot:
    """Saves the parameters, gradients, buffers and plain attributes of modules.

    For tensors, both the objects and their contents are saved.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._attributes = [(vars(module), dict(vars(module))) for module in modules]
        values = [(name, value) for attributes, _ in self._attributes for name, value in attributes.items()]
        self._containers = [(value, value.copy()) for name, value in values if type(value) in (list, dict) and "hooks" not in name]
        tensors = {id(tensor): tensor for _, value in values for tensor in _tensors_of(value)}  # parameters and buffers are in dicts
        self._gradients = [(tensor, tensor.grad) for tensor in tensors.values() if tensor.is_leaf]
        tensors |= {id(gradient): gradient for _, gradient in self._gradients if gradient is not None}
        self._contents = {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors.values() if _has_content(tensor)}

    def update(self, tensors: Iterable[torch.Tensor]) -> None:
        """Save the current contents of some tensors."""
        self._contents |= {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors}

    def restore(self) -> None:
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
        for tensor, content in self._contents.values():
            if not torch.equal(tensor, content):
                tensor.data.copy_(content)  # through `data`, so that graphs that use the tensor stay valid
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    items = value if type(value) in (list, tuple) else value.values() if isinstance(value, dict) else (value,)
    return (item for item in items if isinstance(item, torch.Tensor))


def _has_content(tensor: torch.Tensor) -> bool:
    return not (tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided or is_lazy(tensor))


class IsolatedForward:
    """Runs forward passes that differ only in their batches, and restores the model afterwards.

    Dropout is off, because the random numbers for one example may depend on the other examples. Batch norm mixes
    examples by design, so it always uses the statistics of one initial pass. Modules in `allowed` may mix examples. To
    hide this mixing, each example that is not replaced gets the module's output from the first pass, and gradients pass
    through unchanged.
    """

    def __init__(self, model: nn.Module, allowed: Collection[nn.Module], others: Iterable[nn.Module] = ()) -> None:
        modules = dict.fromkeys(itertools.chain(model.modules(), *(each.modules() for each in others)))
        norms = [each for each in modules if isinstance(each, _BatchNorm) and each.training and each not in allowed]
        self._modules = list(modules)
        self._norms = [each for each in norms if each.running_mean is not None]
        self._allowed = [*(each for each in modules if each in allowed), *(each for each in norms if each.running_mean is None)]
        self._embeddings = [each for each in modules if isinstance(each, (nn.Embedding, nn.EmbeddingBag))]
        self._first_calls: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor | None]] = {}
        """The outputs and inputs of the allowed modules in the first pass. A key consists of the id of the module, the
        index of the call, and the index of the output."""
        self._num_calls: dict[int, int] = {}
        self._chosen: list[bool] | None = None
        self.embedded: list[torch.Tensor] = []
        """The outputs of the embeddings in the last pass."""
        self.num_passes = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Prepare the model for forward passes inside the `with` block, and restore everything on exit."""
        self._rng, modes = get_rng(), [(module, module.training) for module in self._modules]
        norms = ModuleSnapshot(self._norms)
        for module in self._modules:
            if isinstance(module, _RANDOM_LAYERS):
                module.training = False
        for norm in self._norms:
            norm.training, norm.momentum = False, 1.0
        handles = [module.register_forward_hook(self._separate_output) for module in self._allowed]
        handles += [module.register_forward_hook(self._record_embedding) for module in self._embeddings]
        self._start = ModuleSnapshot(self._modules)
        try:
            with warnings.catch_warnings(), torch.enable_grad(), _eager():
                warnings.simplefilter("ignore")  # the training step shows the same warnings
                yield
        finally:
            self._start.restore()
            for handle in handles:
                handle.remove()
            norms.restore()
            restore_modes(modes)
            set_rng(self._rng)

    def calibrate(self, forward: Callable[[], Any]) -> None:
        """Run one pass to get the statistics of every batch norm, and keep them for all later passes."""
        norms = [norm for norm in self._norms if not isinstance(norm, nn.SyncBatchNorm)]  # SyncBatchNorm would wait for other processes
        if not norms:
            return
        self._start.restore()
        for norm in norms:
            norm.training = True  # only for this pass, because the next one restores the modules first
        self._run(forward, None)
        self._start.update(buffer for norm in norms for buffer in norm.buffers(recurse=False))

    def run(self, forward: Callable[[], Any], chosen: list[bool] | None) -> Any:
        """Run one pass.

        `chosen` marks the replaced examples of the batch. None means the first pass. All other passes are compared
        with it.
        """
        self._start.restore()
        return self._run(forward, chosen)

    def _run(self, forward: Callable[[], Any], chosen: list[bool] | None) -> Any:
        set_rng(self._rng)
        self._num_calls, self.embedded, self._chosen = {}, [], chosen
        if chosen is None:
            self._first_calls = {}
        self.num_passes += 1
        return forward()

    def _record_embedding(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            self.embedded.append(output)

    def _separate_output(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        call = self._num_calls[id(module)] = self._num_calls.get(id(module), 0) + 1
        source = next(iter(tensors_in(inputs)), None)
        count = itertools.count()

        def separate(tensor: torch.Tensor) -> torch.Tensor:
            key, new = (id(module), call, next(count)), tensor.detach()
            if self._chosen is None:
                self._first_calls[key] = (new.clone(), None if source is None else source.detach().clone())
            elif key in self._first_calls:
                new = _mix_rows(new, source, *self._first_calls[key], self._chosen)
            return _PassGradient.apply(new, source)  # type: ignore[no-untyped-call, no-any-return]

        return map_batch(output, separate)


def _mix_rows(
    new: torch.Tensor, source: torch.Tensor | None, first: torch.Tensor, first_source: torch.Tensor | None, chosen: list[bool]
) -> torch.Tensor:
    """Combine two outputs: take `new` for the examples that were replaced, and `first` for the others."""
    if new.shape != first.shape:
        return new
    axis = next((axis for axis, size in enumerate(new.shape) if size == len(chosen)), None)
    if axis is not None:
        rows = torch.tensor(chosen, device=new.device)
    elif source is None or first_source is None or source.shape != first_source.shape or not new.ndim or source.shape[:1] != new.shape[:1]:
        return first
    else:  # the rows are not examples, so compare their inputs
        axis, rows = 0, (source.detach() != first_source).reshape(len(source), -1).any(1)
    return torch.where(rows.view([-1 if each == axis else 1 for each in range(new.ndim)]), new, first)


class _PassGradient(torch.autograd.Function):
    """Returns a value in the forward pass, and passes its gradient unchanged to another tensor of the same shape."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
        ctx.has_source = source is not None and source.shape == value.shape
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        return None, gradient if ctx.has_source else None


@contextmanager
def _eager() -> Iterator[None]:
    """Run compiled models eagerly. A new batch size would trigger a recompilation, and compiled code has no source lines to report."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
