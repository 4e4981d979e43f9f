"""Values of a checkpoint as strict JSON and tensors, and back again, equal in value and in type, without pickle.

What JSON has is written as it is. Everything else is a tag: an object whose first key starts with a dot, which no plain dict has.

```text
{".int": "0x1f..."}                an integer of hundreds of digits       {".tuple": [...]}, {".set": [...]}, {".frozenset": [...]}
{".float": "nan"}                  or inf, -inf                           {".dict": [[key, value], ...]}   keys that are not plain text
{".complex": [1.0, 2.0]}                                                  {".ordered": {...}}              an OrderedDict
{".bytes": "..."}                  base64; {".bytearray": "..."}          {".scalar": "<f4", "bytes": "..."}  one of NumPy's
{".str": ["...", "..."]}           halves of surrogate pairs, joined      {".array": name, ...}, {".tensor": name, ...}
```

Arrays and tensors stand in the tree by their names; what `layout` adds to a name is in `tensors.py`. Equal nodes are one object again.
The order of a dict is the order of its keys in JSON, so the tree must not be written with sorted keys.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store.tensors import (
    is_plain_dtype,
    lay_out_array,
    lay_out_tensors,
    plain_dtype,
    rebuild_array,
    rebuild_tensor,
    wrong_array,
    wrong_tensor,
)

MAX_DEPTH = 100
"""Deeper nesting is refused; that keeps every walk within Python's stack."""
MAX_SHOWN = 20
MAX_NAME = 200
_BIG = 2**2000
"""Python may be told to read no integers of more than 640 digits; hexadecimal ones are read at any length."""
_SPLIT_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
"""Between two halves that JSON would read as one letter."""
_HEX = re.compile("-?0x[0-9a-f]+")
_FLOATS = ("nan", "inf", "-inf")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Encoded(NamedTuple):
    """A value as strict JSON, and the arrays and tensors that it names."""

    tree: Any
    tensors: dict[str, Any]
    """Contiguous, on the CPU, and where possible the memory of the value itself."""


class Kinds(NamedTuple):
    """The names that stand in a tree."""

    arrays: list[str]
    tensors: list[str]


def encode(value: Any) -> Encoded:
    """`value` as a JSON tree and the tensors it names; all values that cannot be stored are told in one `CodecError`.

    >>> encode({"epoch": 3, "sizes": (2, float("inf"))}).tree
    {'epoch': 3, 'sizes': {'.tuple': [2, {'.float': 'inf'}]}}
    """
    walk = _Encoder()
    tree = walk.all_of(value)
    if walk.wrong:
        number = len(walk.wrong)
        raise CodecError(f"{'a value' if number == 1 else f'{number} values'} cannot be stored in a checkpoint", wrong=_shown(walk.wrong))
    walk.store_tensors()
    return Encoded(tree, walk.stored)


def encode_plain(value: Any) -> Any:
    """The JSON tree of a value that has no arrays and no tensors, for files that hold nothing else.

    >>> encode_plain({1: b"ab"})
    {'.dict': [[1, {'.bytes': 'YWI='}]]}
    """
    walk = _Encoder(is_plain=True)
    tree = walk.all_of(value)
    if walk.wrong:
        number = len(walk.wrong)
        raise CodecError(
            f"{'a value is no plain value' if number == 1 else f'{number} values are no plain values'}", wrong=_shown(walk.wrong)
        )
    return tree


def decode(tree: Any, tensors: Mapping[str, Any] = _NOTHING) -> Any:
    """The value that `encode` made `tree` and `tensors` of; a `StoreDamagedError` if it cannot have made them.

    Arrays and tensors use the memory of `tensors`.

    >>> decode({".tuple": [1, {".float": "-inf"}]})
    (1, -inf)
    """
    walk = _Decoder(tensors)
    try:
        return walk.value(tree)
    except RecursionError:
        walk.fail("is nested too deep for the stack that is left")


def kinds(tree: Any) -> Kinds:
    """Which names of `tree` are arrays and which are tensors, in order.

    >>> kinds({"a": {".array": "a"}, "b": [{".tensor": "b.0"}]})
    Kinds(arrays=['a'], tensors=['b.0'])
    """
    found: dict[str, dict[str, None]] = {".array": {}, ".tensor": {}}
    todo = [tree]
    while todo:  # no recursion: the tree may be hostile
        node = todo.pop()
        if type(node) is dict:
            for tag, names in found.items():
                if type(node.get(tag)) is str:
                    names[node[tag]] = None
            todo += reversed(node.values())
        elif type(node) is list:
            todo += reversed(node)
    both = found[".array"].keys() & found[".tensor"].keys()
    if both:
        raise StoreDamagedError("a tree is not what was written", why=f"`{min(both)}` is named as an array and as a tensor")
    return Kinds([*found[".array"]], [*found[".tensor"]])


# Encoding


class _Encoder:
    """One walk over a value: where it is, what is wrong, and which arrays and tensors it has met."""

    __slots__ = ("inside", "is_plain", "keys", "met", "names", "nodes", "path", "stored", "wrong")

    def __init__(self, is_plain: bool = False) -> None:
        self.is_plain = is_plain
        self.path: list[Any] = []
        self.inside: set[int] = set()
        self.keys = 0  # in how many keys and sets the walk is
        self.wrong: list[tuple[str, str]] = []
        self.names: dict[str, int] = {}
        self.nodes: dict[int, dict[str, Any]] = {}
        self.met: list[tuple[Any, str]] = []  # the tensors, each with its path
        self.stored: dict[str, Any] = {}

    def all_of(self, value: Any) -> Any:
        try:
            return self.value(value)
        except RecursionError:
            del self.path[8:]
            self.refuse("is nested too deep for the stack that is left")

    def refuse(self, why: str) -> None:
        self.wrong.append((_dotted(self.path), why))

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
        nodes = []
        for number, each in enumerate(value):
            self.path.append(number)
            nodes.append(self.value(each))
            self.path.pop()
        return nodes

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return {".tuple": self._list(value)}

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
            if name == "_metadata":  # what torch writes at a state dict: the versions of its modules
                node["metadata"] = self.value(each)
            else:
                self.refuse("an attribute of an OrderedDict; only torch's `_metadata` is stored")
            self.path.pop()
        return node

    def _items(self, value: dict[Any, Any]) -> Any:
        """An object if all keys are plain text, else pairs."""
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
        """What NumPy and torch have; whoever made such a value has imported them."""
        kind = type(value)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic) and _scalar_dtype(value):
            return _scalar(value)
        is_array = numpy is not None and kind is numpy.ndarray
        is_tensor = torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter)
        if not is_array and not is_tensor:
            return self.refuse(f"{kind.__module__}.{kind.__qualname__}{_advice(value)}")
        name = "an array" if is_array else "a tensor"
        if self.is_plain:
            return self.refuse(f"{name}: write `{'.tolist()' if value.ndim else '.item()'}`")
        if self.keys:
            return self.refuse(f"{name} in a key or a set, where it is known by its address only")
        if id(value) not in self.nodes:
            why = wrong_array(value) if is_array else wrong_tensor(value)
            if why:
                return self.refuse(f"{name}, {why}")
            self.nodes[id(value)] = self._array(value) if is_array else self._tensor(value)
        return self.nodes[id(value)]

    def _array(self, value: Any) -> dict[str, Any]:
        stored, layout = lay_out_array(value)
        name = self._name(_dotted(self.path))
        self.stored[name] = stored
        return {".array": name, **layout}

    def _tensor(self, value: Any) -> dict[str, Any]:
        self.met.append((value, _dotted(self.path)))
        return {}  # until all tensors are known: `store_tensors` fills it in

    def store_tensors(self) -> None:
        """Name what is stored of the tensors, and fill in their nodes."""
        if not self.met:
            return
        kept, places = lay_out_tensors([tensor for tensor, _ in self.met])
        names = {owner: self._name(self.met[owner][1]) for owner in kept}
        self.stored |= {names[owner]: tensor for owner, tensor in kept.items()}
        seen: dict[str, int] = {}
        for (tensor, _), (owner, layout) in zip(self.met, places, strict=True):
            node = self.nodes[id(tensor)]
            node |= {".tensor": names[owner], **layout}
            if type(tensor).__name__ == "Parameter":
                node["parameter"] = True
            if tensor.requires_grad:
                node["requires_grad"] = True
            text = json.dumps(node)
            if text in seen:  # another tensor of the same memory, not the same tensor
                node["alias"] = seen[text]
            seen[text] = seen.get(text, 0) + 1

    def _name(self, path: str) -> str:
        """The name for what stands at `path`, which nothing else has."""
        name = path if path and path != "__metadata__" else "value"
        while name in self.names:
            self.names[name] += 1
            name = f"{name}~{self.names[name]}"
        self.names[name] = 1
        return name


_CONTAINERS: dict[type, Callable[[_Encoder, Any], Any]] = {
    list: _Encoder._list,
    dict: _Encoder._dict,
    tuple: _Encoder._tuple,
    set: _Encoder._set,
    frozenset: _Encoder._set,
    OrderedDict: _Encoder._ordered,
}


def _is_plain_text(text: str) -> bool:
    return text.isascii() or not _SPLIT_PAIR.search(text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _scalar_dtype(value: Any) -> str:
    """The dtype of a NumPy scalar as text; empty for what is no plain scalar."""
    dtype = value.dtype
    if type(value) is not dtype.type or not is_plain_dtype(dtype.str):
        return ""
    if dtype.kind in "US":
        return "str" if dtype.kind == "U" else "bytes"
    return str(dtype.str if plain_dtype(dtype.str).type is dtype.type else dtype.char)  # longlong is int64, and another type


def _scalar(value: Any) -> Any:
    dtype = _scalar_dtype(value)
    if dtype == "str":  # neither its bytes nor `str(value)`, from which NumPy cuts the zeros at the end
        return {".scalar": dtype, "text": _SPLIT_PAIR.split(str.__str__(value))}
    return {".scalar": dtype, "bytes": _base64(bytes(value) if dtype == "bytes" else value.tobytes())}


def _dotted(path: Iterable[Any]) -> str:
    """The dotted path as text that any file and terminal can show.

    >>> _dotted(["model", 0, (1, 2), "weight"])
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


def _shown(wrong: list[tuple[str, str]]) -> str:
    lines = [f"{path or 'the value'}: {why}" for path, why in wrong[:MAX_SHOWN]]
    return "\n".join([*lines, f"... and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else lines)


def _advice(value: Any) -> str:
    kind = type(value)
    if isinstance(value, Enum):
        return ": write `.value`"
    if isinstance(value, PurePath):
        return ": write `str(path)`"
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return ": write `numpy.asarray(x)`"
    if torch is not None and isinstance(value, torch.Tensor):
        return ": write `x.detach().as_subclass(torch.Tensor)`"
    for plain in (tuple, dict, list, str, bytes, bytearray, int, float, complex, set, frozenset):
        if isinstance(value, plain):
            return f": write `{plain.__name__}(x)`"
    for method in ("state_dict", "get_state", "getstate", "isoformat"):
        if not isinstance(value, type) and hasattr(kind, method):
            return f": write `.{method}()`"
    if isinstance(value, range):
        return ": write `list(x)`"
    if dataclasses.is_dataclass(kind):
        return ": write `dataclasses.asdict(x)`"
    if torch is not None and isinstance(value, torch.dtype | torch.device):
        return ": write `str(x)`"
    return ": write its import path as text" if callable(value) else ""


# Decoding


class _Decoder:
    """One walk over a tree: where it is, and the arrays and tensors that it has made."""

    __slots__ = ("depth", "keys", "made", "path", "tensors")

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.path: list[Any] = []
        self.depth = 0
        self.keys = 0
        self.made: dict[str, Any] = {}

    def fail(self, why: str) -> NoReturn:
        raise StoreDamagedError("a tree is not what was written", where=_dotted(self.path), why=why) from None

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


_TAGS: dict[str, tuple[Callable[[_Decoder, Any, dict[str, Any]], Any], tuple[str, ...]]] = {
    ".int": (_Decoder._int, ()),
    ".float": (_Decoder._float, ()),
    ".complex": (_Decoder._complex, ()),
    ".str": (_Decoder._str, ()),
    ".bytes": (_Decoder._bytes, ()),
    ".bytearray": (_Decoder._bytearray, ()),
    ".tuple": (_Decoder._tuple, ()),
    ".set": (_Decoder._set, ()),
    ".frozenset": (_Decoder._frozenset, ()),
    ".dict": (_Decoder._dict, ()),
    ".ordered": (_Decoder._ordered, ("metadata",)),
    ".scalar": (_Decoder._scalar, ("bytes", "text")),
    ".array": (_Decoder._array, ("dtype", "shape", "axes")),
    ".tensor": (_Decoder._tensor, ("dtype", "shape", "stride", "offset", "parameter", "requires_grad", "alias")),
}
"""How each tag is read, and which keys may stand beside it."""
