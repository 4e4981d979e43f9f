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

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store.decoder import Decoder
from trainmaster.store.encoder import Encoder

MAX_SHOWN = 20
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
    walk = Encoder()
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
    walk = Encoder(is_plain=True)
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
    walk = Decoder(tensors)
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


def _shown(wrong: list[tuple[str, str]]) -> str:
    lines = [f"{path or 'the value'}: {why}" for path, why in wrong[:MAX_SHOWN]]
    return "\n".join([*lines, f"... and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else lines)
