"""Encodes a value in one pass: builds its JSON tree, and assigns a name to each array and tensor."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import PurePath
from typing import Any

from trainmaster.store.layout import is_plain_dtype, lay_out_array, lay_out_tensors, plain_dtype, wrong_array, wrong_tensor

MAX_DEPTH = 100
"""The maximum nesting depth. It keeps recursion below Python's recursion limit."""
MAX_NAME = 200
_BIG = 2**2000
"""Integers of this size and above are written in hexadecimal, because Python can be configured to refuse decimal
integers of more than 640 digits. Hexadecimal integers have no such limit."""
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, float, complex, bool, str, bytes, list, tuple, dict, set)}
"""The default factories of a defaultdict that can be stored, by name."""
_SPLIT_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
"""Matches the position between two surrogates that a JSON reader would combine into one character."""


class Encoder:
    """Walks a value once, and tracks the current path, the values of unsupported types, and the arrays and tensors found so far."""

    __slots__ = ("inside", "is_plain", "keys", "names", "nodes", "path", "seen", "stored", "wrong")

    def __init__(self, is_plain: bool = False) -> None:
        self.is_plain = is_plain
        self.path: list[Any] = []
        self.inside: set[int] = set()
        self.keys = 0  # the number of dict keys and sets that contain the current value
        self.wrong: list[tuple[str, str]] = []
        self.names: dict[str, int] = {}
        self.nodes: dict[int, dict[str, Any]] = {}
        self.seen: list[tuple[Any, str]] = []  # the tensors, each with its path
        self.stored: dict[str, Any] = {}

    def encode(self, value: Any) -> Any:
        try:
            return self.value(value)
        except RecursionError:
            del self.path[8:]
            self.refuse("is nested too deep for the remaining stack")

    def refuse(self, why: str) -> None:
        self.wrong.append((dotted(self.path), why))

    def value(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_plain_text(value) else {".str": _SPLIT_PAIR.split(value)}
        if kind is int:
            return value if -_BIG < value < _BIG else {".int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {".float": str(value)}
        if kind in _CONTAINERS:
            if len(self.inside) >= MAX_DEPTH:
                return self.refuse(f"is nested more than {MAX_DEPTH} deep")
            if id(value) in self.inside:
                return self.refuse("contains itself")
            self.inside.add(id(value))
            node = _CONTAINERS[kind](self, value)
            self.inside.discard(id(value))
            return node
        if kind is bytes or kind is bytearray:
            return {f".{kind.__name__}": _base64(value)}
        if kind is complex:
            return {".complex": [self.value(value.real), self.value(value.imag)]}
        return self._foreign(value)

    def _list(self, value: Iterable[Any]) -> list[Any]:
        numbers = list(value)
        if {*map(type, numbers)} == {int} and min(numbers) > -_BIG and max(numbers) < _BIG:
            return numbers  # a fast path for long lists, such as the 625 numbers in the state of a random number generator
        nodes = []
        for number, each in enumerate(numbers):
            self.path.append(number)
            nodes.append(self.value(each))
            self.path.pop()
        return nodes

    def _set(self, value: set[Any] | frozenset[Any]) -> Any:
        self.keys += 1
        nodes = self._list(value)
        self.keys -= 1
        return {f".{type(value).__name__}": sorted(nodes, key=json.dumps)}

    def _dict(self, value: dict[Any, Any]) -> Any:
        node = self._items(value)
        return {".dict": node} if type(node) is list else node

    def _ordered(self, value: OrderedDict[Any, Any]) -> Any:
        node = {".ordered": self._items(value)}
        for name, each in vars(value).items():
            self.path.append(name)
            if name == "_metadata":  # torch adds this attribute, which contains the versions of the modules, to state dicts
                node["metadata"] = self.value(each)
            else:
                self.refuse("is an attribute of an OrderedDict; only torch's `_metadata` is stored")
            self.path.pop()
        return node

    def _counter(self, value: Counter[Any]) -> Any:
        if vars(value):
            return self.refuse(f"is a Counter with attributes, which are not stored: {', '.join(vars(value))}")
        return {".counter": self._items(value)}

    def _default(self, value: defaultdict[Any, Any]) -> Any:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and FACTORIES.get(name) is not factory:
            return self.refuse(f"collections.defaultdict, whose factory is not one of {', '.join(FACTORIES)}: write `dict(x)`")
        return {".defaultdict": self._items(value), "factory": name}

    def _items(self, value: dict[Any, Any]) -> Any:
        """Return a JSON object if all keys are plain text, otherwise a list of pairs."""
        is_plain = all(type(key) is str and not key.startswith(".") and _is_plain_text(key) for key in value)
        pairs = []
        for key, each in value.items():
            self.path.append(key)
            node = key
            if not is_plain:
                self.keys += 1
                node = self.value(key)
                self.keys -= 1
            pairs.append((node, self.value(each)))
            self.path.pop()
        return dict(pairs) if is_plain else [[*pair] for pair in pairs]

    def _foreign(self, value: Any) -> Any:
        """Encode a NumPy or torch value. The library is looked up in `sys.modules`, because it must already be loaded."""
        kind = type(value)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic) and (scalar := _scalar(value)):
            return scalar
        is_array = numpy is not None and kind is numpy.ndarray
        is_tensor = torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter)
        if not is_array and not is_tensor:
            return self.refuse(f"{kind.__module__}.{kind.__qualname__}{_advice(value)}")
        name = "an array" if is_array else "a tensor"
        if self.is_plain:
            return self.refuse(f"{name}: write `{'.tolist()' if value.ndim else '.item()'}`")
        if self.keys:
            return self.refuse(f"{name} in a key or a set: its hash is its address, which changes")
        if id(value) not in self.nodes:
            why = wrong_array(value) if is_array else wrong_tensor(value)
            if why:
                return self.refuse(f"{name}, {why}")
            node: dict[str, Any] = {}
            if is_array:
                name = self._name(dotted(self.path))
                self.stored[name], layout = lay_out_array(value)
                node = {".array": name, **layout}
            else:  # `store_tensors` fills in the node once all tensors are known
                self.seen.append((value, dotted(self.path)))
            self.nodes[id(value)] = node
        return self.nodes[id(value)]

    def store_tensors(self) -> None:
        """Choose names for the tensors to store, and fill in the nodes that refer to them."""
        if not self.seen:
            return
        kept, locations = lay_out_tensors([tensor for tensor, _ in self.seen])
        names = {owner: self._name(self.seen[owner][1]) for owner in kept}
        self.stored |= {names[owner]: tensor for owner, tensor in kept.items()}
        num_aliases: dict[str, int] = {}
        for (tensor, _), (owner, layout) in zip(self.seen, locations, strict=True):
            node = self.nodes[id(tensor)]
            node |= {".tensor": names[owner], **layout}
            if type(tensor).__name__ == "Parameter":
                node["parameter"] = True
            if tensor.requires_grad:
                node["requires_grad"] = True
            text = json.dumps(node)
            if text in num_aliases:  # a second tensor object that shares the same memory
                node["alias"] = num_aliases[text]
            num_aliases[text] = num_aliases.get(text, 0) + 1

    def _name(self, path: str) -> str:
        """Return a unique name for the array or tensor at `path`."""
        name = path if path and path != "__metadata__" else "value"
        while name in self.names:
            self.names[name] += 1
            name = f"{name}~{self.names[name]}"
        self.names[name] = 1
        return name


_CONTAINERS: dict[type, Callable[[Encoder, Any], Any]] = {
    list: Encoder._list,
    dict: Encoder._dict,
    tuple: lambda walk, value: {".tuple": walk._list(value)},
    set: Encoder._set,
    frozenset: Encoder._set,
    OrderedDict: Encoder._ordered,
    Counter: Encoder._counter,
    defaultdict: Encoder._default,
    deque: lambda walk, value: {".deque": walk._list(value), "maxlen": value.maxlen},
}


def _is_plain_text(text: str) -> bool:
    return text.isascii() or not _SPLIT_PAIR.search(text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _scalar(value: Any) -> dict[str, Any] | None:
    """Encode a NumPy scalar, or return None if it cannot be stored."""
    dtype = value.dtype
    if type(value) is not dtype.type or not is_plain_dtype(dtype.str):
        return None
    if dtype.kind == "U":  # `tobytes()` and `str(value)` lose trailing NUL characters
        return {".scalar": "str", "text": _SPLIT_PAIR.split(str.__str__(value))}
    if dtype.kind == "S":
        return {".scalar": "bytes", "bytes": _base64(bytes(value))}
    name = dtype.str if plain_dtype(dtype.str).type is dtype.type else dtype.char  # longlong equals int64, but is a different type
    return {".scalar": name, "bytes": _base64(value.tobytes())}


def _advice(value: Any) -> str:
    kind, numpy, torch = type(value), sys.modules.get("numpy"), sys.modules.get("torch")
    plain = (tuple, dict, deque, list, str, bytes, bytearray, int, float, complex, set, frozenset)
    methods = ("state_dict", "get_state", "getstate", "isoformat")
    ways = [
        (".value", isinstance(value, Enum)),
        ("str(path)", isinstance(value, PurePath)),
        ("numpy.asarray(x)", numpy is not None and isinstance(value, numpy.ndarray)),
        ("x.detach().as_subclass(torch.Tensor)", torch is not None and isinstance(value, torch.Tensor)),
        *((f"{each.__name__}(x)", isinstance(value, each)) for each in plain),
        *((f".{each}()", not isinstance(value, type) and hasattr(kind, each)) for each in methods),
        ("list(x)", isinstance(value, range)),
        ("dataclasses.asdict(x)", dataclasses.is_dataclass(kind)),
        ("str(x)", torch is not None and isinstance(value, torch.dtype | torch.device)),
    ]
    way = next((way for way, fits in ways if fits), None)
    return f": write `{way}`" if way else ": write its import path as text" if callable(value) else ""


def dotted(path: Iterable[Any]) -> str:
    """Join the parts of a path with dots. The result is printable and limited in length.

    >>> dotted(["model", 0, (1, 2), "weight"])
    'model.0.tuple.weight'
    """
    text = ".".join(map(_part, path))
    text = text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."
    return text if text.isprintable() else ascii(text)[1:-1]


def _part(key: Any) -> str:
    kind = type(key)
    if kind is str:
        return str(key)
    is_short = key is None or kind in (bool, float) or (kind is int and abs(key) < 2**64)
    return repr(key) if is_short else kind.__name__
