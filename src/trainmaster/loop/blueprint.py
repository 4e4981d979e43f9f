"""A blueprint describes the constructor calls of a loop and of all objects in it, as plain values that a checkpoint can store.

Plain values, lists and dicts are stored unchanged. Everything else is stored as a *node*, which is a dict with the key `!`:

```text
{"!": "call", "of": "lab.nets:Net", "with": {"width": 16, "threshold": 0.5}}    an object: the result of calling a class or function
{"!": "recipe", "of": "torch.optim.sgd:SGD", "with": {"lr": 0.1, ...}}          a `Recipe`, which the loop calls; "0", "1", ... in `with`
                                                                                 are positional arguments
{"!": "partial", "of": "lab.nets:block", "with": {"0": 4}}                       a `functools.partial`
{"!": "config", "of": "lab.configs:Train", "with": {"lr": 0.1}}                  a config
{"!": "dict", "of": "dict", "keys": [0, 1], "with": {"0": "cat", "1": "dog"}}    a dict with keys that are not strings, or an `OrderedDict`
{"!": "pairs", "with": {"noise": ...}}                                           extensions as a list of (name, extension) pairs
{"!": "name", "of": "lab.losses:focal"}                                          a class, function or constant itself
{"!": "device", "of": "cpu"}, {"!": "path", "of": "data"}                        a device, a path
{"!": "same", "as": "train_data.dataset"}                                        the same object as the one at that path
{"!": "unknown", "what": "DataLoader", "why": "..."}                             an object that cannot be built again
```

Defaults are stored too, so a checkpoint shows the values that were used even if a default has changed since.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

KIND: Final = "!"
Node = dict[str, Any]
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


def is_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(KIND), str)


def children_of(value: Any) -> Mapping[str, Any]:
    """Return the values directly inside another value, by name: the arguments of a call, or the items of a dict or list."""
    if is_node(value):
        return value.get("with", {})  # type: ignore[no-any-return]
    if isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    return {str(number): each for number, each in enumerate(value)} if isinstance(value, list | tuple) else {}


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def parts_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a (dotted path, value) pair for a value and for each value inside it."""
    yield path, value
    for name, each in children_of(value).items():
        yield from parts_of(each, child_path(path, name))


def leaves_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a (dotted path, value) pair for each leaf of a blueprint, that is, for each value that contains no other values."""
    return ((path, each) for path, each in parts_of(value) if not children_of(each))


def unknowns_in(value: Any) -> dict[str, str]:
    """Return the parts of a blueprint that cannot be built again, as a dict from dotted paths to reasons."""
    unknown = {path: each for path, each in leaves_of(value) if is_node(each) and each[KIND] == "unknown"}
    return {path: f"{each['what']}: {each['why']}" for path, each in unknown.items()}


def signature_of(kind: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, or of the constructor of a class."""
    if isinstance(kind, type) and kind.__init__ is not object.__init__:  # type: ignore[misc]
        signature = inspect.signature(kind.__init__)  # type: ignore[misc]  # the `__new__` of an `Extensible` accepts anything
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    return inspect.signature(kind)
