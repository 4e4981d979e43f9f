"""Searches for a leak by checking how the prediction, the gradients and the loss change when some examples are replaced."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch

from trainmaster.extensions.example_batch import ExampleReplacer
from trainmaster.extensions.isolated_forward import IsolatedForward
from trainmaster.extensions.leaks.leak import Leak, NotApplicable, Phase
from trainmaster.extensions.leaks.origins import COARSE, FINE, NO_EXAMPLE, find_changes, find_fault, find_origins, make_ids, make_subsets
from trainmaster.extensions.leaks.trace import ExampleTrace, Result, find_first_fault
from trainmaster.loop.batches import tensors_in

_MAX_PASSES = 20
_PROPORTIONAL = 1e-4
"""Two gradients are treated as multiples of each other if their relative deviation is at most this value."""


@dataclass(frozen=True)
class _Pass:
    """The results of one pass, detached from the autograd graph."""

    prediction: list[torch.Tensor]
    anchors: list[torch.Tensor]
    """The tensors whose gradients are compared: float inputs, and the outputs of embeddings."""
    anchor_grads: list[torch.Tensor | None]
    """The gradients of a weighted sum of the prediction with respect to the anchors. The weights are fixed random numbers."""
    loss_grads: list[torch.Tensor | None]
    """The gradients of the loss with respect to the prediction's tensors or, if none of them has a gradient, to the anchors."""

    def shapes(self) -> list[list[torch.Size | None]]:
        return [[None if each is None else each.shape for each in part] for part in vars(self).values()]


class _NotComparableError(Exception):
    """The passes cannot be compared."""


@dataclass(eq=False)
class LeakSearch:
    """Looks for a leak between the examples of one batch."""

    forward: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any] | None
    isolated: IsolatedForward
    replacer: ExampleReplacer
    has_gradients: bool

    def __post_init__(self) -> None:
        self._ids = make_ids(self.replacer.num)
        self._subsets = make_subsets(self._ids)
        self._keeps_layout = False
        self._tolerance = COARSE

    def run_first_pass(self) -> None:
        """Run the first pass. All other passes are compared with it. Errors that the model raises are not caught."""
        self.isolated.calibrate(lambda: self.forward(self._make_batch(None)[0]))
        self._first, self._tensors, self._anchors = self._run(None)

    def find(self, names: dict[int, str]) -> Leak | NotApplicable | None:
        """Run the other passes, and compare them with the first one. `names` maps the ids of the modules to their dotted names."""
        try:
            passes = self._run_all()
        except _NotComparableError as error:
            return NotApplicable(str(error))
        self._names = names
        self._origins = self._find_origins("prediction", passes)
        if not any(map(_has_examples, self._origins)):
            self._tolerance = FINE
            self._origins = self._find_origins("prediction", passes)
        pairs = [(one, two) for each in passes for one, two in zip(self._first.prediction, each.prediction, strict=True)]
        if all(torch.equal(one, two) for one, two in pairs):
            return NotApplicable("the prediction does not depend on the examples, for example because the last layer is zero")
        if self._has_fault(self._origins):
            return self._locate("forward")
        # An embedding of positions is shared by all examples, so its gradient depends on all of them.
        anchor_origins = self._find_origins("anchors", passes)
        self._is_per_example = [_has_examples(each) and not find_fault(each, self._ids) for each in anchor_origins]
        if self._has_fault(compress(self._find_origins("anchor_grads", passes), self._is_per_example)) or self._has_mixed_gradients():
            return self._locate("backward")
        return self._locate("loss") if self._mixes_in_loss(passes, [*self._origins, *anchor_origins]) else None

    def _has_fault(self, origins: Iterable[torch.Tensor]) -> bool:
        return any(find_fault(each, self._ids) for each in origins)

    # Passes.

    def _make_batch(self, chosen: list[bool] | None) -> tuple[Any, list[torch.Tensor]]:
        """Return the batch of a pass, and the leaves of the autograd graph from which its float tensors are copied."""
        leaves: list[torch.Tensor] = []

        def track_gradient(tensor: torch.Tensor) -> torch.Tensor:
            if not self.has_gradients:
                return tensor
            leaves.append(tensor.requires_grad_())
            return tensor.clone()  # the model may write to it, which is not allowed for a leaf of the graph

        return self.replacer.replace(chosen, keeps_layout=self._keeps_layout, wrap=track_gradient), leaves

    def _run(self, chosen: list[bool] | None) -> tuple[_Pass, list[torch.Tensor], list[torch.Tensor]]:
        """Run a pass. Returns its results, the tensors of the prediction, and the anchors.

        Anchors are the tensors with respect to which gradients are computed: the float inputs and the outputs of embeddings.
        Only the results are detached from the autograd graph.
        """
        batch, leaves = self._make_batch(chosen)
        prediction = self.isolated.run(lambda: self.forward(batch), chosen)
        tensors = tensors_in(prediction)
        anchors = [*leaves, *self.isolated.embedded] if self.has_gradients else []
        results = _Pass(
            [each.detach().clone() for each in tensors],
            [each.detach().clone() for each in anchors],
            _grads(_weighted_sum(tensors, _random_weights(tensors)), anchors),
            self._loss_grads(batch, prediction, tensors, anchors),
        )
        return results, tensors, anchors

    def _loss_grads(
        self, batch: Any, prediction: Any, tensors: list[torch.Tensor], anchors: list[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        loss = None if self.loss is None else self.loss(batch, prediction)
        total = loss if isinstance(loss, torch.Tensor) else None
        grads = [grad if each.ndim else None for grad, each in zip(_grads(total, tensors), tensors, strict=True)]
        return grads + _grads(total if all(each is None for each in grads) else None, anchors)

    def _run_all(self) -> list[_Pass]:
        """Run one pass for each subset of examples. If shapes differ between the passes, try again with the original lengths and masks."""
        for self._keeps_layout in (False, True):
            passes: list[_Pass] = []
            for chosen in self._subsets:
                try:
                    each, _, _ = self._run(chosen)
                except Exception as error:  # models raise all kinds of errors for a new combination of examples
                    reason = f"the model raised {type(error).__name__} for a new combination of the same examples: {error}"
                    break
                if each.shapes() != self._first.shapes():
                    reason = "the shapes of the prediction depend on the content of the examples"
                    break
                passes.append(each)
            else:
                return passes
            if self.isolated.num_passes + 2 * len(self._subsets) + 1 > _MAX_PASSES:
                break
        raise _NotComparableError(reason)

    # Comparing.

    def _find_origins(self, part: str, passes: list[_Pass]) -> list[torch.Tensor]:
        """Return the origins of all tensors in the field `part` of the results. Scalars have no origins."""
        all_origins = []
        for position, first in enumerate(getattr(self._first, part)):
            others = [getattr(each, part)[position] for each in passes]
            if first is None or not first.ndim:
                all_origins.append(torch.full((), NO_EXAMPLE, dtype=torch.int16, device=None if first is None else first.device))
                continue
            origins = find_origins([find_changes(first, other) for other in others])
            if find_fault(origins, self._ids):  # the difference may be due to rounding
                origins = find_origins([find_changes(first, other, self._tolerance) for other in others])
            all_origins.append(origins)
        return all_origins

    def _mask(self, origins: torch.Tensor, chosen: list[bool], is_chosen: bool) -> torch.Tensor:
        """Return a mask of the elements that come from the chosen examples or, if `is_chosen` is False, from the other examples."""
        ids = [each for each, flag in zip(self._ids, chosen, strict=True) if flag is is_chosen]
        return torch.isin(origins, torch.tensor(ids, dtype=torch.int16, device=origins.device))

    def _mixed_weights(self, chosen: list[bool], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the weights from `_random_weights`, with different weights for the elements of the chosen examples."""
        triples = zip(_random_weights(tensors), _random_weights(tensors, seed=1), self._origins, strict=True)
        return [torch.where(self._mask(origins, chosen, True), other, one) for one, other, origins in triples]

    def _has_mixed_gradients(self) -> bool:
        """Return whether the gradient of one example depends on the upstream gradients of other examples."""
        anchors = list(compress(self._anchors, self._is_per_example))
        grads = [_grads(_weighted_sum(self._tensors, self._mixed_weights(chosen, self._tensors)), anchors) for chosen in self._subsets]
        for first, *others in zip(compress(self._first.anchor_grads, self._is_per_example), *grads, strict=True):
            if first is not None and first.ndim:
                origins = find_origins([find_changes(first, other, self._tolerance) for other in others if other is not None])
                if find_fault(origins, self._ids):
                    return True
        return False

    def _mixes_in_loss(self, passes: list[_Pass], origins: list[torch.Tensor]) -> bool:
        """Return whether gradients of the loss change, apart from a common factor, for examples that were not replaced."""
        return any(
            one is not None and two is not None and not _is_proportional(one, two, self._mask(origin, chosen, False))
            for other, chosen in zip(passes, self._subsets, strict=True)
            for one, two, origin in zip(self._first.loss_grads, other.loss_grads, origins, strict=True)
        )

    # Locating.

    def _locate(self, phase: Phase) -> Leak | NotApplicable:
        """Trace all passes again to find the line that mixes examples."""
        trace = ExampleTrace(self._names, _run_traced.__code__, self._tolerance)
        try:
            results = self._trace_all(trace, phase)
            examples = self._find_pair() if phase == "forward" else None
        except _NotComparableError as error:
            return NotApplicable(str(error))
        except Exception:  # the model cannot be traced, so the leak is reported without a line
            return Leak(phase)
        result = find_first_fault(results, is_loss=phase == "loss")
        if result is None:
            return Leak(phase, examples=examples)
        location = result.location
        code = linecache.getline(location.file, location.line).strip() if location.file and location.line else ""
        return Leak(phase, location.module, location.file, location.line, code or None, examples, result.fault)

    def _trace_all(self, trace: ExampleTrace, phase: Phase) -> list[Result]:
        """Trace the operations of all passes. Returns the results in which faults may be visible: the prediction, gradients or loss."""
        trace.start_pass(None)
        tensors, outputs = self._trace(trace, phase, None)
        results = [result for each in outputs for result in trace.find_results(each)]
        pairs = zip(tensors, self._first.prediction, strict=True)
        if any(one.shape != two.shape or bool(find_changes(two, one.detach(), self._tolerance).any()) for one, two in pairs):
            raise _NotComparableError("the model is not deterministic: the same batch and random numbers gave a different prediction")
        for number, chosen in enumerate(self._subsets):
            trace.start_pass(number)
            self._trace(trace, phase, chosen)
        trace.find_faults(len(self._subsets), self._ids)
        return results

    def _trace(self, trace: ExampleTrace, phase: Phase, chosen: list[bool] | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Trace one pass. Returns the prediction, and the tensors in which faults may be visible: the prediction, gradients or loss."""
        batch, leaves = self._make_batch(chosen)
        if phase == "backward":
            return self._trace_backward(trace, batch, leaves, chosen)

        def forward() -> tuple[Any, Any]:
            prediction = self.forward(batch)
            return prediction, self.loss(batch, prediction) if phase == "loss" and self.loss is not None else None

        trace.add_inputs(tensors_in(batch))
        prediction, loss = self.isolated.run(lambda: _run_traced(trace, forward), chosen)
        tensors = tensors_in(prediction)
        return tensors, [loss] if isinstance(loss, torch.Tensor) else [each for each in tensors if each.ndim]

    def _trace_backward(
        self, trace: ExampleTrace, batch: Any, leaves: list[torch.Tensor], chosen: list[bool] | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        tensors = tensors_in(self.isolated.run(lambda: _run_traced(trace.record_forward(), lambda: self.forward(batch)), chosen))
        weights = _random_weights(tensors) if chosen is None else self._mixed_weights(chosen, tensors)
        pairs = [(one, two.to(one.dtype)) for one, two in zip(tensors, weights, strict=True) if one.requires_grad]
        trace.add_inputs([weight for _, weight in pairs])
        anchors = [each for each in compress([*leaves, *self.isolated.embedded], self._is_per_example) if each.requires_grad]
        outputs, grad_outputs = zip(*pairs, strict=True)
        grads = _run_traced(trace, lambda: torch.autograd.grad(outputs, anchors, grad_outputs, allow_unused=True))
        return tensors, [each for each in grads if each is not None]

    def _find_pair(self) -> tuple[int, int] | None:
        """Find an example i whose prediction changes when only another example j is replaced.

        Returns (i, j), or None if there is no such pair. Only the first and the last example are tried as j.
        """
        num = self.replacer.num
        for source in (0, num - 1):
            if self.isolated.num_passes >= _MAX_PASSES:
                break
            other, _, _ = self._run([one == source for one in range(num)])
            pairs = zip(self._first.prediction, other.prediction, strict=True) if other.shapes() == self._first.shapes() else ()
            for before, after in pairs:
                axis = next((axis for axis, size in enumerate(before.shape) if size == num), None)
                if axis is not None:
                    has_changed = find_changes(before, after, self._tolerance).movedim(axis, 0).reshape(num, -1).any(1)
                    dependent = next((row for row in range(num) if row != source and has_changed[row]), None)
                    if dependent is not None:
                        return dependent, source
        return None


def _has_examples(origins: torch.Tensor) -> bool:
    """Return whether any element comes from an example."""
    return bool((origins != NO_EXAMPLE).any())


def _run_traced(trace: AbstractContextManager[Any], function: Callable[[], Any]) -> Any:
    """Run `function` inside `trace`, which treats all code that `function` calls as part of the model."""
    with trace:
        return function()


def _random_weights(tensors: Sequence[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(each.shape, generator=generator).to(each.device) for each in tensors]


def _weighted_sum(tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the weighted sum of all tensors that require a gradient."""
    terms = [(one * two.to(one.dtype)).sum() for one, two in zip(tensors, weights, strict=True) if one.requires_grad and one.ndim]
    return sum(terms[1:], terms[0]) if terms else None


def _grads(total: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradient of `total` with respect to each tensor, or None for a tensor without a gradient."""
    wanted = [each for each in tensors if each.requires_grad]
    if total is None or not total.requires_grad or not wanted:
        return [None] * len(tensors)
    grads = iter(torch.autograd.grad(total.sum(), wanted, allow_unused=True, retain_graph=True))
    return [next(grads) if each.requires_grad else None for each in tensors]


def _is_proportional(one: torch.Tensor, two: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return whether the masked elements of `two` are a multiple of those of `one`, as a whole or column by column.

    Each column may have a different factor, because the terms of a loss may be averaged separately.
    """
    one, two = (torch.where(mask.cpu(), each.cpu().double(), 0.0) for each in (one, two))
    size = max(one.abs().max(), two.abs().max()) if one.numel() else one.new_zeros(())
    if not bool(size.isfinite()) or not bool(size):
        return True

    def is_multiple(axes: tuple[int, ...]) -> bool:
        factor = (one * two).sum(axes, keepdim=True) / (one * one).sum(axes, keepdim=True).clamp_min(1e-300)
        return bool((two - factor * one).abs().max() <= _PROPORTIONAL * size)

    axes = tuple(range(one.ndim))
    return is_multiple(axes) or (one.ndim > 1 and is_multiple(axes[:-1]))
