"""One search for a leak: what changes in the prediction, the gradients and the loss when some examples are replaced."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from trainmaster.extensions.example_batch import Replacement
from trainmaster.extensions.leaks.leak import Leak, NotApplicable, Phase
from trainmaster.extensions.leaks.ownership import COARSE, FINE, NO_EXAMPLE, changes, fault_in, labels_of, owners_of, subsets_of
from trainmaster.extensions.leaks.trace import ExampleTrace, Made, first_fault
from trainmaster.extensions.rehearsal import Rehearsal
from trainmaster.loop.batches import tensors_in

_MAX_PASSES = 20
_PROPORTIONAL = 1e-4
"""How far gradients may be from a multiple of each other."""


@dataclass(frozen=True)
class _Pass:
    """What one pass gave, without its graph."""

    prediction: list[torch.Tensor]
    anchors: list[torch.Tensor]
    """What gradients are asked for: inputs of floats, and what embeddings gave."""
    anchor_grads: list[torch.Tensor | None]
    """Of the prediction times fixed random numbers."""
    loss_grads: list[torch.Tensor | None]
    """Of the loss: in the prediction, and where it has no tensor for examples, in the anchors."""

    def fits(self, other: _Pass) -> bool:
        return all(
            [None if each is None else each.shape for each in mine] == [None if each is None else each.shape for each in others]
            for mine, others in zip(vars(self).values(), vars(other).values(), strict=True)
        )


class Search:
    """One search for a leak, among the examples of one batch."""

    def __init__(
        self,
        forward: Callable[[Any], Any],
        loss: Callable[[Any, Any], Any] | None,
        rehearsal: Rehearsal,
        replacement: Replacement,
        has_gradients: bool,
    ) -> None:
        self._forward = forward
        self._loss = loss
        self._rehearsal = rehearsal
        self._replacement = replacement
        self._has_gradients = has_gradients
        self._labels = labels_of(replacement.num)
        self._subsets = subsets_of(self._labels)
        self._keeps_layout = False
        self._tolerance = COARSE

    def begin(self) -> None:
        """The pass that others are compared to. Raises what the model raises."""
        self._rehearsal.calibrate(lambda: self._forward(self._batch(None)[0]))
        self._first = self._run(None, is_kept=True)

    def finish(self, names: dict[int, str]) -> Leak | NotApplicable | None:
        try:
            passes = self._all_passes()
        except _Unsteady as error:
            return NotApplicable(str(error))
        self._names = names
        self._owners = self._owners_in("prediction", passes)
        if not any(bool((owners != NO_EXAMPLE).any()) for owners in self._owners):
            self._tolerance = FINE
            self._owners = self._owners_in("prediction", passes)
        if not self._depends(passes):
            return NotApplicable("the prediction does not depend on the examples, as if its last layer were zero")
        if any(fault_in(owners, self._labels) for owners in self._owners):
            return self._located("forward")
        if any(fault_in(owners, self._labels) for owners in self._owners_in("anchor_grads", passes)) or self._mixes_cotangents():
            return self._located("backward")
        if any(self._foreign_rows(each, chosen, passes) for each, chosen in zip(passes, self._subsets, strict=True)):
            return self._located("loss")
        return None

    # Passes.

    def _batch(self, chosen: list[bool] | None) -> tuple[Any, list[torch.Tensor]]:
        leaves: list[torch.Tensor] = []

        def own(tensor: torch.Tensor) -> torch.Tensor:
            if not self._has_gradients:
                return tensor
            leaves.append(tensor.requires_grad_())
            return tensor.clone()  # no leaf: the model may write to it

        return self._replacement.make(chosen, keeps_layout=self._keeps_layout, own=own), leaves

    def _run(self, chosen: list[bool] | None, *, is_kept: bool = False) -> _Pass:
        batch, leaves = self._batch(chosen)
        prediction = self._rehearsal.run(lambda: self._forward(batch), chosen)
        tensors = tensors_in(prediction)
        anchors = [*leaves, *self._rehearsal.embedded] if self._has_gradients else []
        result = _Pass(
            [each.detach().clone() for each in tensors],
            [each.detach().clone() for each in anchors],
            _grads(_weighted(tensors, self._cotangents(tensors)), anchors),
            [] if self._loss is None else self._loss_grads(batch, prediction, tensors, anchors),
        )
        if is_kept:
            self._tensors, self._anchors = tensors, anchors
        return result

    def _loss_grads(
        self, batch: Any, prediction: Any, tensors: list[torch.Tensor], anchors: list[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        assert self._loss is not None
        total = self._loss(batch, prediction)
        if not isinstance(total, torch.Tensor):
            return []
        grads = _grads(total, [each for each in tensors if each.ndim])
        return grads if any(each is not None for each in grads) else _grads(total, anchors)

    def _all_passes(self) -> list[_Pass]:
        """One pass for each subset. Where another content gives other shapes, lengths and masks are left alone instead."""
        for self._keeps_layout in (False, True):
            passes: list[_Pass] = []
            for chosen in self._subsets:
                try:
                    each = self._run(chosen)
                except Exception as error:  # whatever a model raises for examples that are put together anew
                    reason = f"the model raised {type(error).__name__} for the same examples put together anew: {error}"
                    break
                if not each.fits(self._first):
                    reason = "the shapes of the prediction depend on the content of the examples"
                    break
                passes.append(each)
            else:
                return passes
            if self._rehearsal.num_passes + 2 * len(self._subsets) + 1 > _MAX_PASSES:
                break
        raise _Unsteady(reason)

    # Judging.

    def _owners_in(self, part: str, passes: list[_Pass]) -> list[torch.Tensor]:
        """The owners of all tensors of a part; scalars belong to nobody, and are left out as if they never changed."""
        found = []
        for position, first in enumerate(getattr(self._first, part)):
            others = [getattr(each, part)[position] for each in passes]
            if first is None or not first.ndim:
                found.append(torch.full((), NO_EXAMPLE, dtype=torch.int16, device=None if first is None else first.device))
                continue
            owners = owners_of([changes(first, other) for other in others])
            if fault_in(owners, self._labels):  # by a rounding, maybe
                owners = owners_of([changes(first, other, self._tolerance) for other in others])
            found.append(owners)
        return found

    def _depends(self, passes: list[_Pass]) -> bool:
        return any(
            not torch.equal(first, other) for each in passes for first, other in zip(self._first.prediction, each.prediction, strict=True)
        )

    def _cotangents(self, tensors: Sequence[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(each.shape, generator=generator).to(each.device) for each in tensors]

    def _mixed_cotangents(self, chosen: list[bool], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Other random numbers for what belongs to the chosen examples."""
        labels = torch.tensor([label for label, is_chosen in zip(self._labels, chosen, strict=True) if is_chosen], dtype=torch.int16)
        pairs = zip(self._cotangents(tensors), self._cotangents(tensors, seed=1), self._owners, strict=True)
        return [torch.where(torch.isin(owners, labels.to(owners.device)), other, one) for one, other, owners in pairs]

    def _mixes_cotangents(self) -> bool:
        """Whether the gradient of one example depends on what comes back to others; seen on the first pass alone."""
        first = self._first.anchor_grads
        if not any(each is not None for each in first):
            return False
        results = [
            _grads(_weighted(self._tensors, self._mixed_cotangents(chosen, self._tensors)), self._anchors) for chosen in self._subsets
        ]
        for position, one in enumerate(first):
            others = [each[position] for each in results]
            if one is not None and one.ndim:
                owners = owners_of([changes(one, other, self._tolerance) for other in others if other is not None])
                if fault_in(owners, self._labels):
                    return True
        return False

    def _foreign_rows(self, other: _Pass, chosen: list[bool], passes: list[_Pass]) -> bool:
        """Whether the loss sees examples that were not replaced in another way than by a common factor."""
        is_in_prediction = len(self._first.loss_grads) == sum(each.ndim > 0 for each in self._first.prediction)
        owners = [each for each, value in zip(self._owners, self._first.prediction, strict=True) if value.ndim]
        if not is_in_prediction or not any(each is not None for each in self._first.loss_grads):
            owners = self._owners_in("anchors", passes)
        kept = torch.tensor([label for label, is_chosen in zip(self._labels, chosen, strict=True) if not is_chosen], dtype=torch.int16)
        for one, two, owner in zip(self._first.loss_grads, other.loss_grads, owners, strict=False):
            if one is not None and two is not None and not _is_proportional(one, two, torch.isin(owner, kept.to(owner.device))):
                return True
        return False

    # Locating.

    def _located(self, phase: Phase) -> Leak | NotApplicable:
        trace = ExampleTrace(self._names, _runs_traced.__code__, self._tolerance)
        try:
            results = self._trace_all(trace, phase)
            examples = self._pair() if phase == "forward" else None
        except _Unsteady as error:
            return NotApplicable(str(error))
        except Exception:  # whatever a model raises that cannot be traced; that it leaks is known
            return Leak(phase, None, None, None, None, None, None)
        made = first_fault(results, is_sum=phase == "loss")
        if made is None or made.fault is None:
            return Leak(phase, None, None, None, None, examples, None)
        place = made.place
        code = linecache.getline(place.file, place.line).strip() if place.file and place.line else ""
        return Leak(phase, place.module, place.file, place.line, code or None, examples, made.fault)

    def _trace_all(self, trace: ExampleTrace, phase: Phase) -> list[Made]:
        """Follow the operations of all passes; what is given back is what the results of the phase were made by."""
        trace.start(None)
        tensors, found = self._traced(trace, phase, None)
        results = [made for each in found for made in trace.makers_of(each)]
        pairs = zip(tensors, self._first.prediction, strict=True)
        if any(one.shape != two.shape or bool(changes(two, one.detach(), self._tolerance).any()) for one, two in pairs):
            raise _Unsteady("the model is not deterministic: the same batch and random numbers gave another prediction")
        for number, chosen in enumerate(self._subsets):
            trace.start(number)
            self._traced(trace, phase, chosen)
        trace.judge(len(self._subsets), self._labels)
        return results

    def _traced(self, trace: ExampleTrace, phase: Phase, chosen: list[bool] | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The prediction's tensors, and the tensors whose makers are wanted."""
        batch, leaves = self._batch(chosen)
        if phase != "backward":
            trace.note(tensors_in(batch))
            prediction, total = self._rehearsed(batch, chosen, trace, with_loss=phase == "loss")
            tensors = tensors_in(prediction)
            return tensors, [total] if isinstance(total, torch.Tensor) else [each for each in tensors if each.ndim]
        prediction, _ = self._rehearsed(batch, chosen)
        tensors = tensors_in(prediction)
        cotangents = self._cotangents(tensors) if chosen is None else self._mixed_cotangents(chosen, tensors)
        pairs = [(one, two.to(one.dtype)) for one, two in zip(tensors, cotangents, strict=True) if one.requires_grad]
        trace.note([two for _, two in pairs])
        anchors = [each for each in [*leaves, *self._rehearsal.embedded] if each.requires_grad]
        one, two = zip(*pairs, strict=True)
        grads = _runs_traced(trace, lambda: torch.autograd.grad(one, anchors, two, allow_unused=True))
        return tensors, [each for each in grads if each is not None]

    def _rehearsed(
        self, batch: Any, chosen: list[bool] | None, trace: ExampleTrace | None = None, *, with_loss: bool = False
    ) -> tuple[Any, Any]:
        def whole() -> tuple[Any, Any]:
            prediction = self._forward(batch)
            return prediction, self._loss(batch, prediction) if with_loss and self._loss is not None else None

        result: tuple[Any, Any] = self._rehearsal.run(lambda: _runs_traced(trace, whole), chosen)
        return result

    def _pair(self) -> tuple[int, int] | None:
        """Some example that depends on the first one, or on the last: a pass with nothing else replaced."""
        num = self._replacement.num
        for source in (0, num - 1):
            if self._rehearsal.num_passes >= _MAX_PASSES:
                break
            other = self._run([one == source for one in range(num)])
            pairs = zip(self._first.prediction, other.prediction, strict=True) if other.fits(self._first) else ()
            for before, after in pairs:
                axis = next((axis for axis, size in enumerate(before.shape) if size == num), None)
                if axis is not None:
                    rows = changes(before, after, self._tolerance).movedim(axis, 0).reshape(num, -1).any(1)
                    found = [row for row in range(num) if row != source and rows[row]]
                    if found:
                        return found[0], source
        return None


class _Unsteady(Exception):
    """Passes that cannot be compared."""


def _runs_traced(trace: ExampleTrace | None, function: Callable[[], Any]) -> Any:
    """The border of a trace: what is called from here is the user's."""
    with trace or nullcontext():
        return function()


def _weighted(tensors: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The sum of all tensors that gradients come back from, times fixed numbers."""
    terms = [(one * two.to(one.dtype)).sum() for one, two in zip(tensors, cotangents, strict=True) if one.requires_grad and one.ndim]
    return sum(terms[1:], terms[0]) if terms else None


def _grads(total: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradient of a sum in each tensor; None where there is none."""
    wanted = [each for each in tensors if each.requires_grad]
    if total is None or not total.requires_grad or not wanted:
        return [None] * len(tensors)
    found = iter(torch.autograd.grad(total.sum(), wanted, allow_unused=True, retain_graph=True))
    return [next(found) if each.requires_grad else None for each in tensors]


def _is_proportional(one: torch.Tensor, two: torch.Tensor, where: torch.Tensor) -> bool:
    """Whether `two` is `one` times a number there; or, as parts of a loss may be averaged apart, times a number for each column."""
    one, two = (torch.where(where.cpu(), each.cpu().double(), 0.0) for each in (one, two))
    size = max(one.abs().max(), two.abs().max()) if one.numel() else one.new_zeros(())

    def rest(axes: tuple[int, ...]) -> torch.Tensor:
        factor = (one * two).sum(axes, keepdim=True) / (one * one).sum(axes, keepdim=True).clamp_min(1e-300)
        return (two - factor * one).abs().max()

    if not bool(size.isfinite()) or not bool(size):
        return True
    if bool(rest(tuple(range(one.ndim))) <= _PROPORTIONAL * size):
        return True
    return one.ndim > 1 and bool(rest(tuple(range(one.ndim - 1))) <= _PROPORTIONAL * size)
