"""Encodes the values of a checkpoint as strict JSON and tensors, without pickle, and decodes them again.

Values that JSON can represent are written unchanged. Every other value becomes a tagged object, whose first key starts with
a dot.

```text
{".int": "0x1f..."}                an integer with hundreds of digits     {".tuple": [...]}, {".set": [...]}, {".frozenset": [...]}
{".float": "nan"}                  or inf, -inf                           {".dict": [[key, value], ...]}   keys that are not plain text
{".complex": [1.0, 2.0]}                                                  {".ordered": {...}}              an OrderedDict
{".bytes": "..."}                  base64; {".bytearray": "..."}          {".scalar": "<f4", "bytes": "..."}  a NumPy scalar
{".str": ["...", "..."]}           text with adjacent surrogates, split   {".array": name, ...}, {".tensor": name, ...}
{".deque": [...], "maxlen": 5}                                            {".counter": {...}}, {".defaultdict": {...}, "factory": "int"}
```

The tree refers to arrays and tensors by name. `layout.py` describes the other keys of these nodes. Equal nodes decode to the same object.
The order of a dict is the order of its keys in JSON, so do not write the tree with sorted keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store.decoder import Decoder
from trainmaster.store.encoder import Encoder

MAX_SHOWN = 20
_NO_TENSORS: Mapping[str, Any] = MappingProxyType({})


class Encoded(NamedTuple):
    """A value as strict JSON, and the arrays and tensors that the JSON refers to by name."""

    tree: Any
    tensors: dict[str, Any]
    """Contiguous arrays and tensors on the CPU. Where possible, they share memory with the encoded value."""


class Kinds(NamedTuple):
    """The names of the arrays and of the tensors that a tree refers to."""

    arrays: list[str]
    tensors: list[str]


def encode(value: Any) -> Encoded:
    """Encode `value` as a JSON tree and named tensors. If it contains unsupported values, raise a `CodecError` that lists them all.

    >>> encode({"epoch": 3, "sizes": (2, float("inf"))}).tree
    {'epoch': 3, 'sizes': {'.tuple': [2, {'.float': 'inf'}]}}
    """
    walk = Encoder()
    tree = walk.encode(value)
    _refuse(walk.wrong, "a value cannot be stored in a checkpoint", "values cannot be stored in a checkpoint")
    walk.store_tensors()
    return Encoded(tree, walk.stored)


def encode_plain(value: Any) -> Any:
    """Encode a value without arrays and tensors, for files that contain only JSON.

    >>> encode_plain({1: b"ab"})
    {'.dict': [[1, {'.bytes': 'YWI='}]]}
    """
    walk = Encoder(is_plain=True)
    tree = walk.encode(value)
    _refuse(walk.wrong, "a value is not a plain value", "values are not plain values")
    return tree


def decode(tree: Any, tensors: Mapping[str, Any] = _NO_TENSORS) -> Any:
    """Return the value that was encoded as `tree` and `tensors`. Raise `StoreDamagedError` if `encode` cannot have written them.

    The returned arrays and tensors share memory with `tensors`.

    >>> decode({".tuple": [1, {".float": "-inf"}]})
    (1, -inf)
    """
    walk = Decoder(tensors)
    try:
        return walk.value(tree)
    except RecursionError:
        walk.fail("is nested too deep for the remaining stack")


def kinds(tree: Any) -> Kinds:
    """Return the names of the arrays and of the tensors in `tree`, in the order in which they appear.

    >>> kinds({"a": {".array": "a"}, "b": [{".tensor": "b.0"}]})
    Kinds(arrays=['a'], tensors=['b.0'])
    """
    names_by_tag: dict[str, dict[str, None]] = {".array": {}, ".tensor": {}}
    todo = [tree]
    while todo:  # no recursion, because a tree from an untrusted source may be nested too deeply
        node = todo.pop()
        if type(node) is dict:
            for tag, names in names_by_tag.items():
                if type(node.get(tag)) is str:
                    names[node[tag]] = None
            todo += reversed(node.values())
        elif type(node) is list:
            todo += reversed(node)
    both = names_by_tag[".array"].keys() & names_by_tag[".tensor"].keys()
    if both:
        raise StoreDamagedError("a stored tree is invalid", why=f"`{min(both)}` is both an array and a tensor")
    return Kinds([*names_by_tag[".array"]], [*names_by_tag[".tensor"]])


def _refuse(wrong: list[tuple[str, str]], one: str, several: str) -> None:
    """Raise an error if some values are of unsupported types."""
    if wrong:
        lines = [f"{path or 'the value'}: {why}" for path, why in wrong[:MAX_SHOWN]]
        lines += [f"... and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else []
        raise CodecError(one if len(wrong) == 1 else f"{len(wrong)} {several}", wrong="\n".join(lines))
