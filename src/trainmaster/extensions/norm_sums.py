"""Sums of gradient norms, kept on the device of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_MAX_WAITING = 256
"""The maximum number of norms that are collected before they are added to the sums. In a small model, adding them
all at once is three times faster."""
_HALVES = (torch.float16, torch.bfloat16)
_MISSING = -1.0
"""The placeholder for the norm of a parameter without a gradient."""

Norms = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class MeanNorm(NamedTuple):
    """The norms of one parameter's gradients."""

    norm: float
    """The mean norm over the batches with a finite gradient. It is NaN if no batch had a gradient, and infinite if no
    gradient was finite."""
    num_nonfinite: int
    """The number of batches whose gradient was not finite."""


class NormSums:
    """Adds up the gradient norms of each parameter over many batches. Only `take` synchronizes with the device.

    For each parameter, only the batches in which it has a gradient are counted. Sums are in double precision if the device
    supports it. Norms are added in groups of fixed size, so that the result does not depend on when the state is read.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        """The number of elements of each parameter."""
        self._parameters: list[nn.Parameter] = []
        self._has_grad: list[bool] | None = []
        """For each parameter, whether it has a gradient. None if all parameters have one."""
        self._norms: Norms = _one_by_one
        self._waiting: list[Sequence[torch.Tensor]] = []
        """For each batch, the norm of each parameter's gradient, or `_MISSING`."""
        self._totals: torch.Tensor | None = None
        """Three rows: the sum of finite norms, their number, and the number of norms that are not finite."""

    def watch(self, model: nn.Module) -> None:
        """Set the model whose gradients are measured. If its parameters differ from those measured before, the sums start at 0."""
        named = dict(model.named_parameters())
        sizes = {name: 0 if is_lazy(each) else each.numel() for name, each in named.items()}
        if sizes != self.sizes:
            self.clear()
        self.sizes, self._parameters, self._has_grad = sizes, list(named.values()), []

    def clear(self) -> None:
        self._waiting, self._totals = [], None

    def add(self) -> None:
        """Add the norms of the current gradients."""
        grads = [grad for each in self._parameters if (grad := each.grad) is not None]
        is_complete = len(grads) == len(self._parameters)
        has_grad = None if is_complete else [each.grad is not None for each in self._parameters]
        if has_grad != self._has_grad:
            self._has_grad = has_grad
            self._norms = norms_for(grads)
            if 0 in self.sizes.values():  # lazy parameters have a size by now
                self.sizes = {name: each.numel() for name, each in zip(self.sizes, self._parameters, strict=True)}
        if not grads:
            return
        norms = self._norms(grads)
        if has_grad is not None:
            missing, present = torch.full_like(norms[0], _MISSING), iter(norms)
            norms = [next(present) if has else missing for has in has_grad]
        self._waiting.append(norms)
        if len(self._waiting) * len(norms) >= _MAX_WAITING:
            self._add_up()

    def _add_up(self) -> None:
        if not self._waiting:
            return
        device = self._waiting[-1][0].device
        if any(row[0].device != device for row in self._waiting):  # restored norms are on the CPU
            self._waiting = [[norm.to(device) for norm in row] for row in self._waiting]
        norms = torch.stack([norm for row in self._waiting for norm in row]).view(len(self._waiting), -1)
        self._waiting = []
        if self._totals is None:
            self._totals = torch.zeros(3, len(self.sizes), dtype=torch.float32 if device.type == "mps" else torch.float64)
        self._totals = self._totals.to(device)
        is_missing = norms == _MISSING
        is_finite = norms.isfinite() & ~is_missing
        is_nonfinite = ~(is_finite | is_missing)
        self._totals += torch.stack([norms.where(is_finite, 0.0).sum(0, dtype=self._totals.dtype), is_finite.sum(0), is_nonfinite.sum(0)])

    def take(self) -> dict[str, MeanNorm]:
        """Return the mean norm of each parameter, in model order, and reset the sums."""
        self._add_up()
        totals = [[0.0] * len(self.sizes)] * 3 if self._totals is None else self._totals.tolist()
        self._totals = None
        means = {}
        for name, total, num_finite, num_nonfinite in zip(self.sizes, *totals, strict=True):
            mean = total / num_finite if num_finite else float("inf") if num_nonfinite else float("nan")
            means[name] = MeanNorm(mean, int(num_nonfinite))
        return means

    def state_dict(self) -> dict[str, Any]:
        waiting = torch.stack([torch.stack(list(row)).cpu() for row in self._waiting]) if self._waiting else None
        return {"sizes": dict(self.sizes), "waiting": waiting, "totals": self._totals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums. `watch` resets them if they belong to a different model."""
        if state["sizes"] != self.sizes:
            self._parameters = []
        self.sizes, self._totals = dict(state["sizes"]), state["totals"]
        self._waiting = [] if state["waiting"] is None else [row.unbind() for row in state["waiting"]]


def norms_for(tensors: list[torch.Tensor]) -> Norms:
    """Return the fastest function that computes the norms of these tensors.

    The function also works for other tensors with the same layouts, devices and types.
    """
    is_plain = all(each.layout is torch.strided and not each.requires_grad for each in tensors)
    if not is_plain or len({(each.device, each.dtype) for each in tensors}) != 1:
        return _one_by_one
    # Norms may overflow in half precision.
    return partial(torch._foreach_norm, dtype=torch.float32 if tensors[0].dtype in _HALVES else None)


@torch.no_grad()
def _one_by_one(grads: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Compute norms one by one, for tensors that are sparse or that differ in device or type."""
    norms = []
    for grad in grads:
        values = grad.coalesce().values() if grad.layout is torch.sparse_coo else grad
        values = values.float() if values.dtype in _HALVES else values
        norms.append(torch.linalg.vector_norm(values).to(grads[0].device, torch.float32, non_blocking=True))
    return norms
