"""Decodes a value from a JSON tree, which may be damaged or malicious."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from trainmaster.errors import StoreDamagedError
from trainmaster.store.encoder import FACTORIES, MAX_DEPTH, dotted
from trainmaster.store.layout import plain_dtype, rebuild_array, rebuild_tensor

_HEX = re.compile("-?0x[0-9a-f]+")
_TENSOR_KEYS = ("dtype", "shape", "stride", "offset", "parameter", "requires_grad", "alias")
Items = TypeVar("Items", bound=dict[Any, Any])


class Decoder:
    """Walks a tree once, and tracks the current path and the arrays and tensors rebuilt so far.

    For each tag, there is a method that decodes the payload. It raises `TypeError` or `ValueError` if the payload is invalid. `value` turns
    these errors into a `StoreDamagedError`.
    """

    __slots__ = ("depth", "keys", "path", "rebuilt", "tensors")

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.path: list[Any] = []
        self.depth = 0
        self.keys = 0  # the number of dict keys and sets that contain the current node
        self.rebuilt: dict[str, Any] = {}

    def fail(self, why: str) -> NoReturn:
        raise StoreDamagedError("a stored tree is invalid", where=dotted(self.path), why=why) from None

    def value(self, node: Any) -> Any:
        kind = type(node)
        if node is None or kind is str or kind is bool or kind is int or (kind is float and math.isfinite(node)):
            return node
        if kind is list:
            return self._list(node)
        if kind is not dict:
            self.fail(f"{kind.__module__}.{kind.__qualname__} is not strict JSON")
        tag = next(iter(node), "")
        if type(tag) is not str or not tag.startswith("."):
            return self._items(node, {})
        read, others = _TAGS.get(tag, (None, ()))
        if read is None or not node.keys() <= {tag, *others}:
            self.fail(f"the tag {ascii([*node])[:80]} is unknown")
        try:
            return read(self, node[tag], node)
        except (TypeError, ValueError) as error:
            self.fail(f"`{tag}` is invalid: {error}")

    def _list(self, payload: Any) -> list[Any]:
        self._enter()
        values = []
        for number, each in enumerate(_expect(payload, list)):
            self.path.append(number)
            values.append(self.value(each))
            self.path.pop()
        self.depth -= 1
        return values

    def _items(self, payload: Any, into: Items) -> Items:
        """Decode the items of a JSON object or of a list of pairs."""
        self._enter()
        is_object = type(payload) is dict
        for item in payload.items() if is_object else _expect(payload, list):
            key, node = item if is_object else _expect(item, list)
            if not is_object:
                key = self._key(key)
            elif type(key) is not str or key.startswith("."):
                self.fail(f"the key {ascii(key)[:60]} is not allowed here")
            self.path.append(key)
            into[key] = self.value(node)
            self.path.pop()
        if len(into) != len(payload):
            self.fail("has a key twice")
        self.depth -= 1
        return into

    def _enter(self) -> None:
        if self.depth >= MAX_DEPTH:
            self.fail(f"is nested more than {MAX_DEPTH} deep")
        self.depth += 1

    def _key(self, node: Any) -> Any:
        self.keys += 1
        key = self.value(node)
        self.keys -= 1
        hash(key)  # raises TypeError if the key is not hashable
        return key

    def _set(self, payload: Any, node: dict[str, Any]) -> set[Any]:
        self._enter()
        values = {self._key(each) for each in _expect(payload, list)}
        self.depth -= 1
        if len(values) != len(payload):
            raise ValueError("it has an item twice")
        return values

    def _ordered(self, payload: Any, node: dict[str, Any]) -> OrderedDict[Any, Any]:
        ordered: OrderedDict[Any, Any] = self._items(payload, OrderedDict())
        if "metadata" in node:
            vars(ordered)["_metadata"] = self.value(node["metadata"])
        return ordered

    def _default(self, payload: Any, node: dict[str, Any]) -> defaultdict[Any, Any]:
        name = node.get("factory")
        if name is not None and _expect(name, str) not in FACTORIES:
            raise ValueError(f"the factory {ascii(name)[:60]} is unknown")
        return self._items(payload, defaultdict(None if name is None else FACTORIES[name]))

    def _deque(self, payload: Any, node: dict[str, Any]) -> deque[Any]:
        values, maxlen = self._list(payload), node.get("maxlen")
        if maxlen is not None and not len(values) <= _expect(maxlen, int) <= sys.maxsize:
            raise ValueError(f"{len(values)} values do not fit the maximum length {maxlen}")
        return deque(values, maxlen)

    def _int(self, payload: Any, node: dict[str, Any]) -> int:
        if not _HEX.fullmatch(payload):
            raise ValueError("expected hexadecimal digits")
        return int(payload, 16)

    def _float(self, payload: Any, node: dict[str, Any]) -> float:
        if payload not in ("nan", "inf", "-inf"):
            raise ValueError("expected nan, inf or -inf")
        return float(payload)  # a new object each time, because a dict can have two NaN keys only if they are different objects

    def _complex(self, payload: Any, node: dict[str, Any]) -> complex:
        real, imag = self._list(payload)
        return complex(_expect(real, float), _expect(imag, float))

    def _str(self, payload: Any, node: dict[str, Any]) -> str:
        return "".join(_expect(payload, list))

    def _bytes(self, payload: Any, node: dict[str, Any]) -> bytes:
        return base64.b64decode(_expect(payload, str), validate=True)

    def _scalar(self, payload: Any, node: dict[str, Any]) -> Any:
        import numpy

        if payload == "str":
            return numpy.str_(self._str(node.get("text"), node))
        data = self._bytes(node.get("bytes"), node)
        if payload == "bytes":
            return numpy.bytes_(data)
        dtype = numpy.dtype(payload) if payload in ("q", "Q") else plain_dtype(payload)
        if dtype.kind in "US" or dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes are not a scalar of dtype {dtype}")
        return numpy.frombuffer(data, dtype)[0]

    def _rebuild(self, payload: Any, node: dict[str, Any], library: str, rebuild: Callable[[Any, dict[str, Any]], Any]) -> Any:
        """Return the array or tensor that `node` describes. For equal nodes, return the same object."""
        if self.keys:
            raise TypeError("it cannot be a key")
        if _expect(payload, str) not in self.tensors:
            raise ValueError(f"there is no tensor {ascii(payload)[:80]}")
        text = json.dumps(node, sort_keys=True)
        if text not in self.rebuilt:
            if library not in sys.modules:  # reading such a tensor would have imported the library
                raise ValueError("the stored tensor belongs to another library")
            try:
                self.rebuilt[text] = rebuild(self.tensors[payload], node)
            except RuntimeError as error:  # torch raises this error for an invalid layout
                raise ValueError(f"`{payload[:80]}`: {error}") from None
        return self.rebuilt[text]


def _expect(payload: Any, kind: type) -> Any:
    if type(payload) is not kind:
        raise TypeError(f"expected a {kind.__name__}, not a {type(payload).__name__}")
    return payload


def _rebuild_tensor(stored: Any, node: dict[str, Any]) -> Any:
    """Return the original tensor. It may be a parameter, and it may require gradients."""
    import torch

    is_parameter, requires_grad = (_expect(node.get(name, False), bool) for name in ("parameter", "requires_grad"))
    _expect(node.get("alias", 1), int)
    tensor = rebuild_tensor(stored, node)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


_TAGS: dict[str, tuple[Callable[[Decoder, Any, dict[str, Any]], Any], tuple[str, ...]]] = {
    ".int": (Decoder._int, ()),
    ".float": (Decoder._float, ()),
    ".complex": (Decoder._complex, ()),
    ".str": (Decoder._str, ()),
    ".bytes": (Decoder._bytes, ()),
    ".bytearray": (lambda walk, payload, node: bytearray(walk._bytes(payload, node)), ()),
    ".tuple": (lambda walk, payload, node: tuple(walk._list(payload)), ()),
    ".set": (Decoder._set, ()),
    ".frozenset": (lambda walk, payload, node: frozenset(walk._set(payload, node)), ()),
    ".dict": (lambda walk, payload, node: walk._items(_expect(payload, list), {}), ()),
    ".ordered": (Decoder._ordered, ("metadata",)),
    ".counter": (lambda walk, payload, node: walk._items(payload, Counter()), ()),
    ".defaultdict": (Decoder._default, ("factory",)),
    ".deque": (Decoder._deque, ("maxlen",)),
    ".scalar": (Decoder._scalar, ("bytes", "text")),
    ".array": (lambda walk, payload, node: walk._rebuild(payload, node, "numpy", rebuild_array), ("dtype", "shape", "axes")),
    ".tensor": (lambda walk, payload, node: walk._rebuild(payload, node, "torch", _rebuild_tensor), _TENSOR_KEYS),
}
"""For each tag, the method that decodes it, and the other keys that the tagged object may have."""
