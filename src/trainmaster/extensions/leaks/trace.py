"""Which operation is the first to mix examples: every operation of several passes, what it made, and whose it is.

All operations of a first pass are recorded with what they made, from what, and the line of code that asked for them. In the passes that
follow, with some examples replaced, the same operations are compared. So each value has an owner, and from a bad result one can walk back
to the operation that made bad out of good.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainmaster.extensions.leaks.ownership import MISPLACED, MIXED, Layout, changes, fault_in, layout_of, owners_of

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_LARGE = 2**22
"""Elements above which a tensor is not read again for each write to a part of it."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of code, and the module that was running."""

    module: str | None
    file: str | None
    line: int | None


@dataclasses.dataclass(eq=False)
class Made:
    """One tensor that an operation made or wrote to."""

    step: int
    """When: the number of the operation."""
    op: str
    place: Place
    sources: tuple[Made, ...]
    """What it was made from, as far as operations made it."""
    value: torch.Tensor
    is_differentiable: bool
    changed: torch.Tensor | None = None
    """A bit for each pass."""
    fault: str | None = None
    layout: Layout | None = None
    """How the examples lie in it, unless some are mixed; None where nothing in it comes from an example."""


Alias = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class ExampleTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch left it
    """Records the operations of a first pass, then compares those of the passes that follow.

    `start` says which pass comes next. `border` is the code object of the function that runs the model: what called it is not part of it.
    """

    def __init__(self, names: Mapping[int, str], border: CodeType, tolerance: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._border = border
        self._tolerance = tolerance
        self._pass: int | None = None
        self._seen: dict[tuple[Any, ...], int] = {}
        self._made: dict[tuple[Any, ...], list[Made]] = {}
        self._writers: dict[int, list[tuple[Alias, Made]]] = {}
        """By storage: what was made in it, in order."""
        self._first: dict[int, torch.Tensor] = {}
        """By storage: the tensor it was made for. Kept, so that no other takes its address."""
        self._num_steps = 0

    def start(self, number: int | None) -> None:
        """`None` is the first pass; the others count from 0, as `subsets_of` orders them."""
        self._pass = number
        self._seen.clear()
        self._first.clear()

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take in what the pass is given; operations find their first sources there."""
        for number, tensor in enumerate(each for each in tensors if _is_plain(each)):
            key = (Place(None, None, None), "given.", number)
            if self._pass is None:
                self._record(key, [tensor], (), tensor.requires_grad)
            else:
                self._compare(key, [tensor])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        sources = self._sources(given) if self._pass is None else ()
        output = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(output) if _is_plain(each)]
        name, is_telling = _named(func)
        if made and is_telling:
            made += self._wholes(func, args, kwargs or {}, made)
            place = self._place(sys._getframe(1))
            key = (place, name)
            count = self._seen[key] = self._seen.get(key, 0) + 1
            if self._pass is None:
                self._record((*key, count), made, sources, any(each.requires_grad for each in given))
            else:
                self._compare((*key, count), made)
        for each in made:
            self._first.setdefault(_storage(each), each)
        return output

    def _wholes(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors whose parts are written to in place: a wrong row of them is seen in the line that writes it."""
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return []
        return [
            whole
            for each in made
            if (whole := self._first.get(_storage(each))) is not None and whole.shape != each.shape and whole.numel() <= _LARGE
        ]

    def _record(self, key: tuple[Any, ...], made: list[torch.Tensor], sources: tuple[Made, ...], is_differentiable: bool) -> None:
        self._num_steps += 1
        for tensor in made:
            each = Made(self._num_steps, key[1], key[0], sources, tensor.detach().clone(), is_differentiable)
            self._made.setdefault(key, []).append(each)
            self._writers.setdefault(_storage(tensor), []).append((_alias(tensor), each))

    def _compare(self, key: tuple[Any, ...], made: list[torch.Tensor]) -> None:
        assert self._pass is not None
        for first, tensor in zip(self._made.get(key, ()), made, strict=False):
            is_comparable = first.value.shape == tensor.shape and first.value.dtype == tensor.dtype
            if is_comparable and not torch.equal(first.value, tensor):
                bits = changes(first.value, tensor.detach(), self._tolerance).to(torch.uint8) << self._pass
                first.changed = bits if first.changed is None else first.changed | bits

    def _sources(self, given: Iterable[torch.Tensor]) -> tuple[Made, ...]:
        return tuple(dict.fromkeys(each for tensor in given for each in self.makers_of(tensor)))

    def makers_of(self, tensor: torch.Tensor) -> list[Made]:
        """What the tensor consists of: the last that was made under its very form; without such, all that was written to its memory."""
        if not _is_plain(tensor):
            return []
        writers, alias = self._writers.get(_storage(tensor), []), _alias(tensor)
        last = next((made for form, made in reversed(writers) if form == alias), None)
        if last is not None:
            return [last]
        return [made for form, made in writers if form[1:] == writers[0][0][1:] or made.op.split(".")[1].endswith("_")]

    def judge(self, num_passes: int, labels: Sequence[int]) -> None:
        """Say for all that was made whether it is at fault."""
        for made in (each for group in self._made.values() for each in group):
            if made.changed is not None:
                owners = owners_of([(made.changed >> number & 1).bool() for number in range(num_passes)])
                made.fault = fault_in(owners, labels)
                made.layout = None if made.fault == MIXED else layout_of(owners, labels)

    def _place(self, frame: FrameType | None) -> Place:
        """The innermost line outside of torch, and the innermost module; a line of the module's own where all is torch."""
        module, line, inner = None, None, None
        while frame is not None and frame.f_code is not self._border:
            code = frame.f_code
            if module is None and code.co_varnames[:1] == ("self",) and isinstance(self_ := frame.f_locals.get("self"), nn.Module):
                name = self._names.get(id(self_), "")
                module, inner = f"{name} ({type(self_).__name__})" if name else type(self_).__name__, (code.co_filename, frame.f_lineno)
            if not _is_machinery(code.co_filename):
                line = (code.co_filename, frame.f_lineno)
                if module is not None:
                    break
                line_module = frame.f_locals.get("self")
                if isinstance(line_module, nn.Module):
                    break
                # A function of the user's, called by a module further out: that module is the one that runs.
                module = self._module_around(frame.f_back)
                break
            frame = frame.f_back
        file, number = line or inner or (None, None)
        return Place(module, file, number)

    def _module_around(self, frame: FrameType | None) -> str | None:
        while frame is not None and frame.f_code is not self._border:
            if frame.f_code.co_varnames[:1] == ("self",) and isinstance(self_ := frame.f_locals.get("self"), nn.Module):
                name = self._names.get(id(self_), "")
                return f"{name} ({type(self_).__name__})" if name else type(self_).__name__
            frame = frame.f_back
        return None


def first_fault(results: Iterable[Made], *, is_sum: bool = False) -> Made | None:
    """The earliest operation that made bad out of good, among those that the bad `results` come from.

    `is_sum` is for a loss, which is a sum over examples and bad by right: what counts is what was bad before it became one number.
    """
    reached: dict[Made, list[Made]] = {}
    waiting = [each for each in results if each.fault is not None]
    while waiting:
        made = waiting.pop()
        if made not in reached:
            reached[made] = _causes(made) or _seen_before(made)
            waiting += reached[made]
    if is_sum:
        bad = [each for each in reached if each.value.numel() > 1] or list(reached)
        bad = [each for each in bad if each.is_differentiable] or bad
        return _walk_back(min(bad, key=_step), reached) if bad else None
    return min((made for made, causes in reached.items() if not causes), key=_step, default=None)


def _walk_back(made: Made, reached: Mapping[Made, list[Made]]) -> Made:
    while reached[made]:
        made = min(reached[made], key=_step)
    return made


def _step(made: Made) -> int:
    return made.step


def _causes(made: Made) -> list[Made]:
    """The sources that explain the fault of what was made from them."""
    sources = [each for each in made.sources if each.step < made.step and not _is_order(each)]
    torn = [each for each in sources if each.fault is not None and each.fault != MISPLACED]
    if torn:
        return torn
    # Examples in another order do no harm (sorted by length, say), as long as all that meet have the same order.
    is_harmless = made.fault != MISPLACED and len({each.layout for each in sources if each.layout is not None}) == 1
    return [] if is_harmless else [each for each in sources if each.fault == MISPLACED]


def _is_order(made: Made) -> bool:
    """Whether it is the order that a sort found. It depends on all examples; it is the line that follows it that may mix them."""
    return made.op.split(".")[1] in ("sort", "argsort", "topk") and not made.value.is_floating_point()


def _seen_before(made: Made) -> list[Made]:
    """The first among all it comes from where the examples lie in the same bad way.

    A linear layer may lay all rows below each other, where nothing is wrong, and then put them back as they were.
    """
    found, waiting, known = [], list(made.sources), set(made.sources)
    while waiting:
        each = waiting.pop()
        if each.fault == made.fault and each.layout is not None and each.layout == made.layout and each.step < made.step:
            found.append(each)
        more = [source for source in each.sources if source not in known]
        known.update(more)
        waiting += more
    return [min(found, key=_step)] if found else []


@functools.cache
def _named(func: Any) -> tuple[str, bool]:
    """An operation's name, such as aten.add_.Tensor, and whether it makes something.

    What is not yet written holds anything, and another handle on a tensor is that tensor.
    """
    return str(func), not any(word in str(func) for word in ("empty", "aten.detach", "aten.alias"))


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested and value.numel() > 0


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _alias(tensor: torch.Tensor) -> Alias:
    return _storage(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def _is_machinery(file: str) -> bool:
    """Whether a file belongs to torch, to trainmaster, or to a library that only writes operations shorter."""
    if file.startswith(("<frozen", _TORCH + os.sep, _HERE + os.sep)):
        return True
    parts = file.split(os.sep)
    return "site-packages" in parts and not {"einops", "einx", "opt_einsum", "functorch"}.isdisjoint(parts)
