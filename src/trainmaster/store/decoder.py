"""Decoding: one walk over a tree, which may be damaged or made by somebody else, and makes the value of it."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from trainmaster.errors import StoreDamagedError
from trainmaster.store.encoder import MAX_DEPTH, dotted
from trainmaster.store.layout import plain_dtype, rebuild_array, rebuild_tensor

_HEX = re.compile("-?0x[0-9a-f]+")
_FLOATS = ("nan", "inf", "-inf")


class Decoder:
    """One walk over a tree: where it is, and the arrays and tensors that it has made."""

    __slots__ = ("depth", "keys", "made", "path", "tensors")

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.path: list[Any] = []
        self.depth = 0
        self.keys = 0
        self.made: dict[str, Any] = {}

    def fail(self, why: str) -> NoReturn:
        raise StoreDamagedError("a tree is not what was written", where=dotted(self.path), why=why) from None

    def value(self, node: Any) -> Any:
        kind = type(node)
        if node is None or kind is str or kind is bool or kind is int or (kind is float and math.isfinite(node)):
            return node
        if kind is list:
            return self._list(node)
        if kind is not dict:
            self.fail(f"{kind.__module__}.{kind.__qualname__} is not of strict JSON")
        tag = next(iter(node), "")
        if type(tag) is not str or not tag.startswith("."):
            return self._items(node, {})
        read, others = _TAGS.get(tag, (None, ()))
        if read is None or not node.keys() <= {tag, *others}:
            self.fail(f"the tag {ascii([*node])[:80]} is unknown")
        return read(self, node[tag], node)

    def _list(self, payload: Any) -> list[Any]:
        if type(payload) is not list:
            self.fail("has no list where one belongs")
        self._enter()
        values = []
        for number, each in enumerate(payload):
            self.path.append(number)
            values.append(self.value(each))
            self.path.pop()
        self.depth -= 1
        return values

    def _items(self, payload: Any, into: dict[Any, Any]) -> dict[Any, Any]:
        """The items of an object or of a list of pairs."""
        is_object = type(payload) is dict
        if not is_object and type(payload) is not list:
            self.fail("has neither an object nor pairs where one of them belongs")
        self._enter()
        for item in payload.items() if is_object else payload:
            if not is_object and (type(item) is not list or len(item) != 2):
                self.fail("has pairs that are none")
            key, node = item
            if not is_object:
                key = self._hashable(key)
            elif type(key) is not str or key.startswith("."):
                self.fail(f"the key {ascii(key)[:60]} does not belong here")
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

    def _hashable(self, node: Any) -> Any:
        self.keys += 1
        key = self.value(node)
        self.keys -= 1
        try:
            hash(key)
        except TypeError:
            self.fail(f"a {type(key).__name__} cannot be a key")
        return key

    def _tuple(self, payload: Any, node: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self._list(payload))

    def _set(self, payload: Any, node: dict[str, Any]) -> set[Any]:
        if type(payload) is not list:
            self.fail("has no list where one belongs")
        self._enter()
        values = {self._hashable(each) for each in payload}
        self.depth -= 1
        if len(values) != len(payload):
            self.fail("has an item twice")
        return values

    def _frozenset(self, payload: Any, node: dict[str, Any]) -> frozenset[Any]:
        return frozenset(self._set(payload, node))

    def _dict(self, payload: Any, node: dict[str, Any]) -> dict[Any, Any]:
        if type(payload) is not list:
            self.fail("has no pairs where they belong")
        return self._items(payload, {})

    def _ordered(self, payload: Any, node: dict[str, Any]) -> OrderedDict[Any, Any]:
        ordered: OrderedDict[Any, Any] = OrderedDict()
        self._items(payload, ordered)
        if "metadata" in node:
            vars(ordered)["_metadata"] = self.value(node["metadata"])
        return ordered

    def _int(self, payload: Any, node: dict[str, Any]) -> int:
        if type(payload) is not str or not _HEX.fullmatch(payload):
            self.fail("has no hexadecimal digits where they belong")
        return int(payload, 16)

    def _float(self, payload: Any, node: dict[str, Any]) -> float:
        if type(payload) is not str or payload not in _FLOATS:
            self.fail("is none of nan, inf and -inf")
        return float(payload)  # each nan is another one, as it may be a key

    def _complex(self, payload: Any, node: dict[str, Any]) -> complex:
        parts = self._list(payload)
        if [type(each) for each in parts] != [float, float]:
            self.fail("has no two floats where they belong")
        return complex(*parts)

    def _str(self, payload: Any, node: dict[str, Any]) -> str:
        if type(payload) is not list or not all(type(each) is str for each in payload):
            self.fail("has no texts where they belong")
        return "".join(payload)

    def _bytes(self, payload: Any, node: dict[str, Any]) -> bytes:
        if type(payload) is not str:
            self.fail("has no base64 where it belongs")
        try:
            return base64.b64decode(payload, validate=True)
        except ValueError as error:
            self.fail(f"has no base64 where it belongs: {error}")

    def _bytearray(self, payload: Any, node: dict[str, Any]) -> bytearray:
        return bytearray(self._bytes(payload, node))

    def _scalar(self, payload: Any, node: dict[str, Any]) -> Any:
        import numpy

        if payload == "str":
            return numpy.str_(self._str(node.get("text"), node))
        data = self._bytes(node.get("bytes"), node)
        if payload == "bytes":
            return numpy.bytes_(data)
        try:
            dtype = numpy.dtype(payload) if payload in ("q", "Q") else plain_dtype(payload)
        except ValueError as error:
            self.fail(str(error))
        if dtype.kind in "US" or dtype.itemsize != len(data):
            self.fail(f"{len(data)} bytes are no scalar of dtype {dtype}")
        return numpy.frombuffer(data, dtype)[0]

    def _array(self, payload: Any, node: dict[str, Any]) -> Any:
        return self._made(payload, node, "numpy", rebuild_array)

    def _tensor(self, payload: Any, node: dict[str, Any]) -> Any:
        return self._made(payload, node, "torch", _rebuild_tensor)

    def _made(self, payload: Any, node: dict[str, Any], library: str, rebuild: Callable[[Any, dict[str, Any]], Any]) -> Any:
        """The array or tensor that `node` describes; the one made before if it was the same object."""
        if self.keys:
            self.fail("an array or a tensor cannot be a key")
        if type(payload) is not str or payload not in self.tensors:
            self.fail(f"there is no tensor {ascii(payload)[:80]}")
        try:
            text = json.dumps(node, sort_keys=True)
        except (TypeError, ValueError):
            self.fail("is not of strict JSON")
        if text not in self.made:
            if library not in sys.modules:  # whoever has made what is stored has imported it
                self.fail("what is stored is of another library")
            try:
                self.made[text] = rebuild(self.tensors[payload], node)
            except MemoryError:
                raise
            except Exception as error:  # ours, or what NumPy and torch say of a layout that is none
                self.fail(f"`{payload[:80]}`: {error}")
        return self.made[text]


def _rebuild_tensor(stored: Any, node: dict[str, Any]) -> Any:
    """The tensor, with what autograd knows of it."""
    import torch

    is_parameter, requires_grad = (node.get(name, False) for name in ("parameter", "requires_grad"))
    if type(is_parameter) is not bool or type(requires_grad) is not bool or type(node.get("alias", 1)) is not int:
        raise ValueError("its marks are not of their types")
    tensor = rebuild_tensor(stored, node)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


_TAGS: dict[str, tuple[Callable[[Decoder, Any, dict[str, Any]], Any], tuple[str, ...]]] = {
    ".int": (Decoder._int, ()),
    ".float": (Decoder._float, ()),
    ".complex": (Decoder._complex, ()),
    ".str": (Decoder._str, ()),
    ".bytes": (Decoder._bytes, ()),
    ".bytearray": (Decoder._bytearray, ()),
    ".tuple": (Decoder._tuple, ()),
    ".set": (Decoder._set, ()),
    ".frozenset": (Decoder._frozenset, ()),
    ".dict": (Decoder._dict, ()),
    ".ordered": (Decoder._ordered, ("metadata",)),
    ".scalar": (Decoder._scalar, ("bytes", "text")),
    ".array": (Decoder._array, ("dtype", "shape", "axes")),
    ".tensor": (Decoder._tensor, ("dtype", "shape", "stride", "offset", "parameter", "requires_grad", "alias")),
}
"""How each tag is read, and which keys may stand beside it."""
