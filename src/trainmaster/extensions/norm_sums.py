"""Sums of gradient norms, kept where the gradients are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_MAX_WAITING = 256
"""How many norms may wait to be added up. To add them up together costs a third of adding each at once, where there are few parameters."""
_HALVES = (torch.float16, torch.bfloat16)

Norms = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
_FOREACH_NORM: Norms = torch._foreach_norm


class Mean(NamedTuple):
    """The norms of one parameter's gradients."""

    norm: float
    """The mean over the batches with a finite gradient; NaN without any gradient, infinite without any that is finite."""
    num_odd: int
    """The batches whose gradient was not finite."""


class NormSums:
    """Adds up, by parameter, the norms of the gradients of many batches; nothing waits for the device until `take`.

    A parameter counts in the batches where it has a gradient. Sums are in double precision, where the device has it, and are added up in
    portions of so many batches, whoever asks in between.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        """The number of coefficients by parameter."""
        self._parameters: list[nn.Parameter] = []
        self._watched: list[nn.Parameter] = []
        self._idle: list[nn.Parameter] = []
        """Those without a gradient so far."""
        self._places: list[int] = []
        self._norms: Norms = _FOREACH_NORM
        self._waiting: list[Sequence[torch.Tensor]] = []
        self._totals: torch.Tensor | None = None
        """Three rows: the sums, the number of finite norms, and of those that are not."""

    def watch(self, model: nn.Module) -> None:
        """Take the parameters as they are by now. What was added up of others is forgotten."""
        named = dict(model.named_parameters())
        sizes = {name: 0 if is_lazy(each) else each.numel() for name, each in named.items()}
        if sizes != self.sizes:
            self.clear()
            self._places = []
        self.sizes, self._parameters = sizes, list(named.values())
        self._watched, self._idle = [self._parameters[place] for place in self._places], self._parameters  # chosen at the next batch

    def clear(self) -> None:
        self._waiting, self._totals = [], None

    def add(self) -> None:
        """Add the norms of the gradients that are there now."""
        for each in self._idle:
            if each.grad is not None:
                self._choose()
                break
        if not self._watched:
            return
        try:
            norms = self._norms([each.grad for each in self._watched])  # type: ignore[misc]
        except TypeError:  # one of them has no gradient any more
            self._choose()
            if not self._watched:
                return
            norms = self._norms([each.grad for each in self._watched])  # type: ignore[misc]
        self._waiting.append(norms)
        if len(self._waiting) * len(norms) >= _MAX_WAITING:
            self._add_up()

    def _choose(self) -> None:
        """Watch the parameters that have a gradient now."""
        places = [place for place, each in enumerate(self._parameters) if each.grad is not None]
        if places != self._places:
            self._add_up()
            self._places = places
        if 0 in self.sizes.values():  # lazy ones know their size by now
            self.sizes = {name: each.numel() for name, each in zip(self.sizes, self._parameters, strict=True)}
        self._watched = [self._parameters[place] for place in places]
        self._idle = [each for each in self._parameters if each.grad is None and each.requires_grad]
        grads = [each.grad for each in self._watched if each.grad is not None]
        self._norms = norms_for(grads)

    def _add_up(self) -> None:
        if not self._waiting:
            return
        device = self._waiting[-1][0].device
        for row in self._waiting:
            if row[0].device != device:  # it was restored
                self._waiting = [[norm.to(device) for norm in each] for each in self._waiting]
                break
        norms = torch.stack([norm for row in self._waiting for norm in row]).view(len(self._waiting), -1)
        self._waiting = []
        if self._totals is None:
            self._totals = torch.zeros(3, len(self.sizes), dtype=torch.float32 if device.type == "mps" else torch.float64)
        self._totals = self._totals.to(device)
        is_finite = norms.isfinite()
        added = torch.stack([norms.where(is_finite, 0.0).sum(0, dtype=self._totals.dtype), is_finite.sum(0), (~is_finite).sum(0)])
        if len(self._places) == len(self.sizes):
            self._totals += added
        else:
            self._totals.index_add_(1, torch.tensor(self._places, device=device), added)

    def take(self) -> dict[str, Mean]:
        """The means by parameter, in the model's order; from here on, new sums."""
        self._add_up()
        totals = [[0.0] * len(self.sizes)] * 3 if self._totals is None else self._totals.tolist()
        self._totals = None
        found = {}
        for name, total, num_finite, num_odd in zip(self.sizes, *totals, strict=True):
            mean = total / num_finite if num_finite else float("inf") if num_odd else float("nan")
            found[name] = Mean(mean, int(num_odd))
        return found

    def state_dict(self) -> dict[str, Any]:
        waiting = torch.stack([torch.stack(list(row)).cpu() for row in self._waiting]) if self._waiting else None
        return {"sizes": dict(self.sizes), "places": list(self._places), "waiting": waiting, "totals": self._totals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with sums; `watch` leaves them out where they do not fit."""
        self.clear()
        if state["sizes"] != self.sizes:
            self._parameters = self._watched = self._idle = []  # they are of another model
        self.sizes, self._places, self._totals = dict(state["sizes"]), list(state["places"]), state["totals"]
        if state["waiting"] is not None:
            self._waiting = [row.unbind() for row in state["waiting"]]
        if self._parameters:
            self._watched, self._idle = [self._parameters[place] for place in self._places], self._parameters


def norms_for(tensors: list[torch.Tensor]) -> Norms:
    """The fastest way to the norms of these tensors, and of others like them."""
    is_plain = all(each.layout is torch.strided and not each.requires_grad for each in tensors)
    if not is_plain or len({(each.device, each.dtype) for each in tensors}) > 1:
        return _one_by_one
    return _of_halves if any(each.dtype in _HALVES for each in tensors) else _FOREACH_NORM


def _of_halves(grads: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The norm of half-precision numbers may well be more than half precision can hold."""
    return torch._foreach_norm(grads, 2, torch.float32)


@torch.no_grad()
def _one_by_one(grads: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Of tensors that are sparse, on several devices or of several types."""
    found = []
    for grad in grads:
        if grad is None:
            raise TypeError("no gradient")
        values = grad.coalesce().values() if grad.layout is torch.sparse_coo else grad
        values = values.float() if values.dtype in _HALVES else values
        found.append(torch.linalg.vector_norm(values).to(grads[0].device, torch.float32, non_blocking=True))
    return found
