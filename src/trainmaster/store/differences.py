"""Differences: where two values are not the same, bit by bit.

Nothing is rounded and nothing is close enough: 0.0 is not -0.0, `True` is not 1, a tuple is no list. A NaN is the same as another one if
its bits are. The order of a dict says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from trainmaster.store.layout import bytes_of, dtype_name

ROW, TENSOR, VALUE = "row", "tensor", "value"
"""The kinds of what can differ: rows of metrics, tensors and arrays, and all other values."""
MISSING = "missing"
_MANY = 16
"""Lists with more numbers than this differ as one: the words of a random generator, say."""
_MAX_SHOWN = 60


class Difference(NamedTuple):
    """One thing that two values do not have in common."""

    kind: str
    """`ROW`, `TENSOR` or `VALUE`."""
    name: str
    """Its dotted path, or the tag of a row."""
    one: str
    """What the first has there, in a few characters; `MISSING` where it has nothing."""
    other: str
    step: int | None = None
    """Of a row: the step or epoch that it was recorded with."""
    num: int | None = None
    """Of what has many parts: how many of them differ."""
    size: int | None = None
    """How many parts there are."""
    greatest: float | None = None
    """How far the parts are apart at most, as far as they are finite numbers."""

    def __str__(self) -> str:
        if self.num is None:
            at = "" if self.step is None else f" at {self.step}"
            return f"{self.name}{at}: {self.one} against {self.other}"
        far = "" if self.greatest is None else f", by up to {self.greatest:.3g}"
        return f"{self.name}: {self.num:,} of {self.size:,} {'elements' if self.kind == TENSOR else 'parts'} differ{far}"


class Differences(NamedTuple):
    """All differences between two values, and how much was compared."""

    found: tuple[Difference, ...]
    num_tensors: int
    num_numbers: int


def differences(one: Any, other: Any, name: str = "") -> Differences:
    """Where two values differ that a checkpoint can hold.

    >>> found, *_ = differences({"lr": 0.1, "sizes": (1, 2)}, {"lr": 0.2, "sizes": (1, 2)})
    >>> print(*found)
    lr: 0.1 against 0.2
    """
    walk = _Walk()
    walk.compare(name, one, other)
    return Differences(tuple(walk.found), walk.num_tensors, walk.num_numbers)


def bits(value: Any) -> Any:
    """Something that is equal, and has the same hash, for plain values with the same bits only.

    >>> bits(0.0) == bits(-0.0), bits(1) == bits(True), bits(float("nan")) == bits(float("nan"))
    (False, False, True)
    """
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<2d", value.real, value.imag)
    if kind in (tuple, list):
        return kind, tuple(map(bits, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(bits, value))
    if isinstance(value, Mapping):
        return kind, frozenset((bits(name), bits(each)) for name, each in value.items())
    if kind is bytearray:
        return kind, bytes(value)
    return kind, (value.dtype, value.tobytes()) if _is_scalar(value) else value


def shown(value: Any) -> str:
    """A value in a few characters."""
    if _is_array(value):
        return f"{dtype_name(value)} {[*value.shape]}"
    if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) > 4:
        return f"{type(value).__name__} of {len(value):,}"
    text = str(value) if _is_scalar(value) else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]} ..."


class _Walk:
    """One walk over two values at once."""

    def __init__(self) -> None:
        self.found: list[Difference] = []
        self.num_tensors = self.num_numbers = 0

    def compare(self, name: str, one: Any, other: Any) -> None:
        if type(one) is not type(other):
            kind = TENSOR if _is_array(one) and _is_array(other) else VALUE
            self.found.append(Difference(kind, name, _typed(one, other), _typed(other, one)))
        elif _is_array(one):
            self._compare_arrays(name, one, other)
        elif isinstance(one, Mapping):
            self._compare_items(name, one.items(), other.items(), lambda key: key)
        elif isinstance(one, list | tuple):
            self._compare_sequences(name, one, other)
        elif isinstance(one, set | frozenset):
            self._compare_sets(name, one, other)
        elif isinstance(one, bytes | bytearray) and len(one) == len(other):
            self._add_parts(name, sum(a != b for a, b in zip(one, other, strict=True)), len(one))
        else:
            self.num_numbers += _is_number(one)
            if bits(one) != bits(other):
                self.found.append(Difference(VALUE, name, shown(one), shown(other)))

    def _compare_items(self, name: str, ones: Iterable[Any], others: Iterable[Any], label: Callable[[Any], Any]) -> None:
        """Pairs of a key and a value, by the bits of the keys."""
        there = {bits(key): (key, value) for key, value in others}
        for key, value in ones:
            path = _joined(name, label(key))
            if (found := there.pop(bits(key), None)) is None:
                self.found.append(Difference(VALUE, path, shown(value), MISSING))
            else:
                self.compare(path, value, found[1])
        for key, value in there.values():
            self.found.append(Difference(VALUE, _joined(name, label(key)), MISSING, shown(value)))

    def _compare_sequences(self, name: str, one: Any, other: Any) -> None:
        if len(one) == len(other) > _MANY and all(map(_is_number, one)) and all(map(_is_number, other)):
            self.num_numbers += len(one)
            self._add_parts(name, sum(bits(a) != bits(b) for a, b in zip(one, other, strict=True)), len(one))
        else:
            self._compare_items(name, enumerate(one), enumerate(other), lambda place: place)

    def _compare_sets(self, name: str, one: Any, other: Any) -> None:
        here, there = ({bits(each): each for each in values} for values in (one, other))
        self.num_numbers += sum(map(_is_number, one))
        for each in here.keys() - there.keys():
            self.found.append(Difference(VALUE, name, shown(here[each]), MISSING))
        for each in there.keys() - here.keys():
            self.found.append(Difference(VALUE, name, MISSING, shown(there[each])))

    def _add_parts(self, name: str, num: int, size: int) -> None:
        if num:
            self.found.append(Difference(VALUE, name, f"{size:,} parts", f"{size:,} parts", num=num, size=size))

    def _compare_arrays(self, name: str, one: Any, other: Any) -> None:
        self.num_tensors += 1
        if shown(one) != shown(other):
            self.found.append(Difference(TENSOR, name, shown(one), shown(other)))
            return
        here, there = (_bytes(each) for each in (one, other))
        is_other = here != there
        if is_other.any():
            size = max(1, _num_elements(one))
            num = int(is_other.reshape(size, -1).any(axis=1).sum())
            self.found.append(Difference(TENSOR, name, shown(one), shown(other), num=num, size=size, greatest=_greatest(one, other)))


def _joined(name: str, key: Any) -> str:
    text = key if isinstance(key, str) else repr(key)
    return f"{name}.{text}" if name else text


def _typed(value: Any, other: Any) -> str:
    """A value whose type is what differs: told where the value does not tell it."""
    text = shown(value)
    return f"{text} ({type(value).__name__})" if _is_array(value) == _is_array(other) or text == shown(other) else text


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex) or _is_scalar(value)


def _is_array(value: Any) -> bool:
    """Whether it is a tensor of torch or an array of NumPy, neither of which is imported for that."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    """Whether it is a single number of NumPy's."""
    return hasattr(value, "dtype") and hasattr(value, "tobytes") and not hasattr(value, "__setitem__")


def _num_elements(array: Any) -> int:
    return int(array.numel() if hasattr(array, "numel") else array.size)


def _bytes(array: Any) -> Any:
    """The bytes of a tensor or array, on the CPU, as a flat array of NumPy's."""
    if hasattr(array, "numel"):
        return bytes_of(array.detach().resolve_conj().resolve_neg().cpu())
    import numpy

    return bytes_of(numpy.ascontiguousarray(array))


def _greatest(one: Any, other: Any) -> float | None:
    """How far two arrays of one dtype are apart at most, as far as they are finite; None where that is no number."""
    import numpy

    try:
        with numpy.errstate(all="ignore"):
            far = numpy.abs(_wide(one) - _wide(other))
            far = far[numpy.isfinite(far)]
        return float(far.max()) if far.size else None
    except (TypeError, ValueError, RuntimeError):  # of texts or times, or of a dtype that torch only stores
        return None


def _wide(array: Any) -> Any:
    """An array with room for all its differences."""
    is_complex = "complex" in dtype_name(array)
    if hasattr(array, "numel"):
        import torch

        return array.detach().cpu().to(torch.complex128 if is_complex else torch.float64).numpy()
    import numpy

    return array.astype(numpy.complex128 if is_complex else numpy.float64)
