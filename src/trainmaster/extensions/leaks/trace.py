"""Finds the first operation that mixes examples.

A trace records all operations of a first pass: their results, their inputs, and the line of code. In later passes, with
some examples replaced, it compares the results of the same operations with those of the first pass. This shows which
example each value comes from. A result in which examples are mixed or misplaced has a fault. From such a result, the
search goes back to the first operation that produced a faulty result from inputs without a fault.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainmaster.extensions.leaks.origins import MIXED, REORDERED, Layout, find_changes, find_fault, find_layout, find_origins

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MAX_WRITTEN = 2**22
"""After an operation writes to a part of a tensor, the whole tensor is compared if it has at most this many elements."""


class DimensionRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotation there
    """Collects the dimensions of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimensions: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for each in tree_leaves(output):
            if isinstance(each, torch.Tensor) and not each.is_nested:
                self.dimensions.update(each.shape)
        return output


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of code, and the module that was running."""

    module: str | None
    file: str | None
    line: int | None


@dataclasses.dataclass(eq=False)
class Result:
    """One tensor that an operation returned or wrote to."""

    step: int
    """The number of the operation."""
    op: str
    location: Location
    sources: tuple[Result, ...]
    """The earlier results from which this one was computed."""
    value: torch.Tensor
    is_differentiable: bool
    changed: torch.Tensor | None = None
    """For each element, a bit mask with one bit per pass. A bit is set if the element changed in that pass."""
    fault: str | None = None
    layout: Layout | None = None
    """The arrangement of the examples. None if they are mixed, or if no element comes from an example."""


class ForwardLines(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotation there
    """Collects the locations of the operations of a forward pass, by the number of their node in the autograd graph."""

    def __init__(self, locate: Callable[[FrameType], Location]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._locate = locate
        self._locations: dict[int, Location] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        last_node = torch._C._autograd._get_sequence_nr() - 1  # the node is created just before the operation runs
        self._locations.setdefault(last_node, self._locate(sys._getframe(1)))
        return func(*args, **(kwargs or {}))

    def find_current(self) -> Location:
        """Return the forward location of the backward operation that is running."""
        node = torch._C._current_autograd_node()
        return self._locations.get(node._sequence_nr() if node else -1, Location(None, None, None))


Key = tuple[Location, str, int]
"""Identifies an operation in a pass: the line of code, the name, and how many times that line has called the operation."""
View = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The part of a storage that a tensor refers to: offset, shape and strides."""


class ExampleTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotation there
    """Records the operations of a first pass, and compares them with the same operations in later passes.

    Args:
        names: maps the ids of the modules to their dotted names.
        border: the code object of the function that runs the model. Stack frames outside of this function are not
            part of the model.
    """

    def __init__(self, names: Mapping[int, str], border: CodeType, tolerance: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._border = border
        self._tolerance = tolerance
        self._pass: int | None = None
        self._counts: dict[tuple[Location, str], int] = {}
        self._results: dict[Key, list[Result]] = {}
        self._writes: dict[int, list[tuple[View, Result]]] = {}
        """For each storage, the results that were written to it, in order."""
        self._owners: dict[int, torch.Tensor] = {}
        """For each storage, the first tensor in it. It is kept alive so that no other tensor gets the same address."""
        self._num_steps = 0
        self._forward_lines: ForwardLines | None = None

    def record_forward(self) -> ForwardLines:
        """Record the lines of a forward pass. Backward operations run no Python code, so they are reported at these lines."""
        self._forward_lines = ForwardLines(self._locate)
        return self._forward_lines

    def start_pass(self, number: int | None) -> None:
        """Start the first pass if `number` is None. Otherwise, start the pass that replaces the subset of examples with this number."""
        self._pass = number
        self._counts.clear()
        self._owners.clear()

    def add_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        for number, tensor in enumerate(each for each in tensors if _is_strided(each)):
            self._add((Location(None, None, None), "input.", number), [tensor], (), tensor.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        results = (each for tensor in inputs for each in self.find_results(tensor)) if self._pass is None else ()
        sources = tuple(dict.fromkeys(results))
        output = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(output) if _is_strided(each)]
        name, has_content = _describe(func)
        if tensors and has_content:
            schema = getattr(func, "_schema", None)
            if schema is not None and schema.is_mutable:
                tensors += self._written_tensors(tensors)
            location = self._locate(sys._getframe(1))
            count = self._counts[location, name] = self._counts.get((location, name), 0) + 1
            self._add((location, name, count), tensors, sources, any(each.requires_grad for each in inputs))
        for each in tensors:
            self._owners.setdefault(_storage(each), each)
        return output

    def _written_tensors(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """For each part of a tensor that an operation wrote to, return the whole tensor.

        If the operation writes to a wrong row, the fault is then attributed to the line of this operation. Very large
        tensors are left out.
        """
        pairs = [(self._owners.get(_storage(part)), part) for part in parts]
        return [whole for whole, part in pairs if whole is not None and whole.shape != part.shape and whole.numel() <= _MAX_WRITTEN]

    def _add(self, key: Key, tensors: list[torch.Tensor], sources: tuple[Result, ...], is_differentiable: bool) -> None:
        """In the first pass, record the results of an operation. In later passes, compare the results with the recorded ones."""
        if self._pass is None:
            self._num_steps += 1
            for tensor in tensors:
                result = Result(self._num_steps, key[1], key[0], sources, tensor.detach().clone(), is_differentiable)
                self._results.setdefault(key, []).append(result)
                self._writes.setdefault(_storage(tensor), []).append((_view(tensor), result))
            return
        for first, tensor in zip(self._results.get(key, ()), tensors, strict=False):
            is_comparable = first.value.shape == tensor.shape and first.value.dtype == tensor.dtype
            if is_comparable and not torch.equal(first.value, tensor):
                bits = find_changes(first.value, tensor.detach(), self._tolerance).to(torch.uint8) << self._pass
                first.changed = bits if first.changed is None else first.changed | bits

    def find_results(self, tensor: torch.Tensor) -> list[Result]:
        """Return the last result with the same storage, offset, shape and strides as `tensor`.

        If there is no such result, return all results that were written to the storage.
        """
        if not _is_strided(tensor):
            return []
        writes, view = self._writes.get(_storage(tensor), []), _view(tensor)
        last = next((result for other, result in reversed(writes) if other == view), None)
        if last is not None:
            return [last]
        return [result for other, result in writes if other == writes[0][0] or result.op.split(".")[1].endswith("_")]

    def find_faults(self, num_passes: int, ids: Sequence[int]) -> None:
        """Determine the fault and the layout of each result. Call this after the last pass."""
        for result in (each for results in self._results.values() for each in results):
            if result.changed is not None:
                origins = find_origins([(result.changed >> number & 1).bool() for number in range(num_passes)])
                result.fault = find_fault(origins, ids)
                result.layout = None if result.fault == MIXED else find_layout(origins, ids)

    def _locate(self, frame: FrameType | None) -> Location:
        """Return the innermost line of the user's code and the innermost module.

        If the stack contains only torch's own code, return a line of that code.
        """
        module, line, torch_line = None, None, None
        while frame is not None and frame.f_code is not self._border and (module is None or line is None):
            position = (frame.f_code.co_filename, frame.f_lineno)
            if module is None and frame.f_code.co_varnames[:1] == ("self",) and isinstance(owner := frame.f_locals.get("self"), nn.Module):
                name = self._names.get(id(owner), "")
                module, torch_line = f"{name} ({type(owner).__name__})" if name else type(owner).__name__, position
            if line is None and not _is_library(frame.f_code.co_filename):
                line = position
            frame = frame.f_back
        if module is None and line is None and self._forward_lines is not None:
            return self._forward_lines.find_current()
        return Location(module, *(line or torch_line or (None, None)))


def find_first_fault(results: Iterable[Result], *, is_loss: bool = False) -> Result | None:
    """Go back from `results` to the earliest faulty result that was computed from results without a fault.

    A loss is a sum over examples, so it is mixed by design. With `is_loss`, only operations before the last sum are
    considered.
    """
    causes: dict[Result, list[Result]] = {}
    waiting = [each for each in results if each.fault is not None]
    while waiting:
        result = waiting.pop()
        if result not in causes:
            causes[result] = _find_causes(result) or _find_same_layout(result)
            waiting += causes[result]
    if not is_loss:
        return min((result for result, found in causes.items() if not found), key=attrgetter("step"), default=None)
    bad = [each for each in causes if each.value.numel() > 1] or list(causes)
    bad = [each for each in bad if each.is_differentiable] or bad
    first = min(bad, key=attrgetter("step"), default=None)
    while first is not None and causes[first]:
        first = min(causes[first], key=attrgetter("step"))
    return first


def _find_causes(result: Result) -> list[Result]:
    """Return the sources whose faults explain the fault of `result`, or an empty list if no source explains it."""
    sources = [each for each in result.sources if each.step < result.step and not _is_sorted_order(each)]
    bad = [each for each in sources if each.fault is not None and each.fault != REORDERED]
    if bad:
        return bad
    # A different order of the examples, for example sorted by length, is fine as long as all sources have the same
    # order.
    is_harmless = result.fault != REORDERED and len({each.layout for each in sources if each.layout is not None}) == 1
    return [] if is_harmless else [each for each in sources if each.fault == REORDERED]


def _is_sorted_order(result: Result) -> bool:
    """Return whether a result contains the indices that a sort returns.

    These indices depend on all examples, but sorting does not mix the examples themselves.
    """
    return result.op.split(".")[1] in ("sort", "argsort", "topk") and not result.value.is_floating_point()


def _find_same_layout(result: Result) -> list[Result]:
    """Find the first direct or indirect source with the same fault and layout.

    For example, a linear layer may flatten all rows and restore the shape afterwards. A wrong layout is not visible in
    the flat result, so the search must go further back.
    """
    same, waiting, seen = [], list(result.sources), set(result.sources)
    while waiting:
        each = waiting.pop()
        if each.fault == result.fault and each.layout is not None and each.layout == result.layout and each.step < result.step:
            same.append(each)
        more = [source for source in each.sources if source not in seen]
        seen.update(more)
        waiting += more
    return [min(same, key=attrgetter("step"))] if same else []


@functools.cache
def _describe(func: Any) -> tuple[str, bool]:
    """Return the name of an operation, such as aten.add_.Tensor, and whether its output has new contents.

    Two kinds of operations return no new contents: the contents of `torch.empty` are undefined, and a detached tensor
    has the same contents as its input.
    """
    return str(func), not any(word in str(func) for word in ("empty", "aten.detach", "aten.alias"))


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested and value.numel() > 0


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _view(tensor: torch.Tensor) -> View:
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def _is_library(file: str) -> bool:
    """Return whether a file belongs to torch, to trainmaster, or to a library such as einops, which only calls torch operations."""
    if file.startswith(("<frozen", _TORCH_FOLDER, _OWN_FOLDER)):
        return True
    parts = file.split(os.sep)
    return "site-packages" in parts and not {"einops", "einx", "opt_einsum", "functorch"}.isdisjoint(parts)
