"""Blueprints: how a loop and all it consists of was made, as plain values that a checkpoint can hold.

A value stands for itself, lists and dicts for what they hold; what is more is a *node*, a dict with the key `!`:

```text
{"!": "call", "of": "lab.nets:Net", "with": {"width": 16, "threshold": 0.5}}    an object: a class or function, called
{"!": "recipe", "of": "torch.optim.sgd:SGD", "with": {"lr": 0.1, ...}}          a `Recipe`, to be called by the loop; "0", "1", ... in
                                                                                 `with` are arguments that have only a place
{"!": "partial", "of": "lab.nets:block", "with": {"0": 4}}                       a `functools.partial`
{"!": "config", "of": "lab.configs:Train", "with": {"lr": 0.1}}                  a config
{"!": "dict", "of": "dict", "keys": [0, 1], "with": {"0": "cat", "1": "dog"}}    a dict with other keys than text; an `OrderedDict`
{"!": "pairs", "with": {"noise": ...}}                                           extensions as a list
{"!": "name", "of": "lab.losses:focal"}                                          a class, function or constant itself
{"!": "device", "of": "cpu"}, {"!": "path", "of": "data"}                        a device, a path
{"!": "same", "as": "train_data.dataset"}                                        the object that was made for that place
{"!": "unknown", "what": "DataLoader", "why": "..."}                             what cannot be made again
```

Defaults are written out: a checkpoint says what acted, also when a default has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

KIND: Final = "!"
Node = dict[str, Any]
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
MAX_DEPTH: Final = 100


def is_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(KIND), str)


def children_of(value: Any) -> Mapping[str, Any]:
    """The parts of a blueprint's value by name: the arguments of a call, the items of a dict, those of a list by number."""
    if is_node(value):
        return dict(value["with"]) if "with" in value else {}
    if isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    return {str(number): each for number, each in enumerate(value)} if isinstance(value, list | tuple) else {}


_PARTS: Final[dict[str, dict[str, type]]] = {
    "call": {"of": str, "with": dict},
    "recipe": {"of": str, "with": dict},
    "partial": {"of": str, "with": dict},
    "config": {"of": str, "with": dict},
    "dict": {"of": str, "keys": list, "with": dict},
    "pairs": {"with": dict},
    "name": {"of": str},
    "device": {"of": str},
    "path": {"of": str},
    "same": {"as": str},
    "unknown": {"what": str, "why": str},
}


def is_sound(blueprint: Any) -> bool:
    """Whether a value that was read from a file is a blueprint: nodes of known kinds with their parts, and not too deep to go through."""
    open_values = [(blueprint, 0)]
    while open_values:
        value, depth = open_values.pop()
        if is_node(value):
            parts = _PARTS.get(value[KIND])
            if parts is None or not all(isinstance(value.get(name), kind) for name, kind in parts.items()):
                return False
            if not all(isinstance(name, str) for name in children_of(value)) or not _has_sound_keys(value):
                return False
        if depth > 2 * MAX_DEPTH:
            return False
        open_values += [(each, depth + 1) for each in children_of(value).values()]
    return True


def _has_sound_keys(node: Node) -> bool:
    keys = node.get("keys", [])
    return node[KIND] != "dict" or (len(keys) == len(node["with"]) and all(type(key) in PLAIN for key in keys))


def places_in(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a blueprint, what is inside of others after them, by its dotted name."""
    yield path, value
    for name, each in children_of(value).items():
        yield from places_in(each, below(path, name))


def leaves_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter of a blueprint, by its dotted name."""
    return ((path, each) for path, each in places_in(value) if not children_of(each))


def below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def unknowns_in(value: Any) -> dict[str, str]:
    """What cannot be made again, by its dotted name, and why."""
    found = {path: each for path, each in leaves_of(value) if is_node(each) and each[KIND] == "unknown"}
    return {path: f"{each['what']}: {each['why']}" for path, each in found.items()}
