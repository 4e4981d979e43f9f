"""Blueprints: how a loop and all it consists of was made, as plain values that a checkpoint can hold.

A value stands for itself, lists and dicts for what they hold; what is more is a *node*, a dict with the key `!`:

```text
{"!": "call", "of": "lab.nets:Net", "with": {"width": 16, "threshold": 0.5}}    an object: a class or function, called
{"!": "recipe", "of": "torch.optim.sgd:SGD", "with": {"lr": 0.1, ...}}          the same, to be called by the loop
{"!": "name", "of": "lab.losses:focal"}                                          a class, function or constant itself
{"!": "device", "of": "cpu"}, {"!": "path", "of": "data"}                        a device, a path
{"!": "same", "as": "train_data.dataset"}                                        the object that was made for that place
{"!": "unknown", "what": "DataLoader", "why": "..."}                             what cannot be made again
```

Defaults are written out: a checkpoint says what acted, also when a default has changed since.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmaster.config.import_path import path_of
from trainmaster.config.secret_fields import masked_value
from trainmaster.config.secrets import Mask
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.recipe import Recipe
from trainmaster.loop.setup import Setup
from trainmaster.stages.made_with import Made, Unrepeatable, made_with

if TYPE_CHECKING:
    from trainmaster.loop.train_manager import TrainManager

KIND: Final = "!"
Node = dict[str, Any]
LEFT_OUT: Final = ("train_dir", "writer")
"""Arguments of a loop that say where it writes: another one writes elsewhere."""
_MADE_BY_THE_LOOP: Final = ("optimizer", "lr_schedule")
_LOADER: Final = "checkpoint_loader"
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_HINT: Final = "mark its class @tracked, or make it by a Recipe"


def blueprint_of(manager: TrainManager) -> Node:
    """How a loop was made, with its extensions as they are now."""
    made = made_with(manager)
    assert made is not None
    return _Draft(manager).drawn(made)


def is_node(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(KIND), str)


def children_of(value: Any) -> Mapping[str, Any]:
    """The parts of a blueprint's value by name: the arguments of a call, the items of a dict, those of a list by number."""
    if is_node(value):
        return dict(value["with"]) if "with" in value else {}
    if isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    return {str(number): each for number, each in enumerate(value)} if isinstance(value, list | tuple) else {}


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter of a blueprint, by its dotted name."""
    children = children_of(value)
    if not children:
        yield path, value
    for name, each in children.items():
        yield from leaves_of(each, f"{path}.{name}" if path else name)


def unknowns_in(value: Any) -> dict[str, str]:
    """What cannot be made again, by its dotted name, and why."""
    found = {path: each for path, each in leaves_of(value) if is_node(each) and each[KIND] == "unknown"}
    return {path: f"{each['what']}: {each['why']}" for path, each in found.items()}


def signature_of(kind: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a call; of a class, those of its constructor."""
    if isinstance(kind, type) and kind.__init__ is not object.__init__:  # type: ignore[misc]
        whole = inspect.signature(kind.__init__)  # type: ignore[misc]  # a `__new__` of ours takes anything
        return whole.replace(parameters=list(whole.parameters.values())[1:])
    return inspect.signature(kind)


class _Draft:
    """Draws the blueprint of one loop, and knows what it has drawn."""

    def __init__(self, manager: TrainManager) -> None:
        self._manager = manager
        self._mask = Mask.of()
        self._places: dict[int, str] = {}
        """Where each object is, so that one that is there twice is made once."""

    def drawn(self, made: Made) -> Node:
        self._places[id(self._manager)] = ""
        try:
            of = path_of(made.kind)
        except ValueError as error:
            return _unknown(made.kind, str(error))
        arguments = bound(made.kind, made.args, made.kwargs, is_whole=True)
        for name in LEFT_OUT:
            arguments.pop(name, None)
        values = {name: self._argument(name, value) for name, value in arguments.items() if name != "extensions"}
        if "extensions" in signature_of(made.kind).parameters:
            values["extensions"] = self._extensions()
        return {KIND: "call", "of": of, "with": values}

    def _argument(self, name: str, value: Any) -> Any:
        if name in _MADE_BY_THE_LOOP:
            if isinstance(value, type):
                value = Recipe(value)  # with its defaults
            elif isinstance(value, Optimizer):
                return self._optimizer(value)
            elif isinstance(value, LRScheduler):
                return self._schedule(value)
        return self._value(value, name)

    def _extensions(self) -> dict[str, Any]:
        found = {}
        for name, each in self._manager.extensions.items():
            if name == _LOADER or type(each) in (Setup, EvalState) or type(each).__module__.startswith("trainmaster.manager"):
                continue
            node = self._value(each, f"extensions.{name}")
            is_missed = getattr(each, "is_observer", False) is not True
            if is_missed or not unknowns_in(node):  # training is the same without an observer
                found[name] = node
        return found

    # ---- values

    def _value(self, value: Any, path: str, is_in_recipe: bool = False) -> Any:
        if type(value) is str and self._is_secret(value, path):
            return _unknown("text", "it looks like a secret, and is not stored")
        if type(value) in _PLAIN or isinstance(value, torch.Tensor | np.ndarray):
            return value
        if type(value) in (list, tuple):
            return type(value)(self._value(each, f"{path}.{number}", is_in_recipe) for number, each in enumerate(value))
        if isinstance(value, dict):
            return self._dict(value, path, is_in_recipe)
        if isinstance(value, functools.partial):
            return self._call("recipe", value.func, value.args, value.keywords, path)
        if isinstance(value, Recipe):
            return self._call("call" if is_in_recipe else "recipe", value.kind, value.args, value.kwargs, path, is_in_recipe=True)
        if isinstance(value, enum.Enum):
            return self._named(type(value), path, f".{value.name}")
        if isinstance(value, torch.dtype):
            return {KIND: "name", "of": str(value).replace("torch.", "torch:")}
        if isinstance(value, torch.device):
            return {KIND: "device", "of": str(value)}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, PathLike):
            return {KIND: "path", "of": fspath(value)}
        return self._object(value, path)

    def _is_secret(self, text: str, path: str) -> bool:
        name = next((part for part in reversed(path.split(".")) if not part.isdigit()), "")
        return masked_value(name, text) != text or self._mask.is_in(text)

    def _dict(self, value: dict[Any, Any], path: str, is_in_recipe: bool) -> Any:
        if KIND in value or not all(isinstance(key, str) for key in value):
            return _unknown(value, "its keys are not plain names")
        return {key: self._value(each, f"{path}.{key}", is_in_recipe) for key, each in value.items()}

    def _object(self, value: Any, path: str) -> Node:
        if id(value) in self._places:
            return {KIND: "same", "as": self._places[id(value)]}
        made = made_with(value)
        if made is not None:
            self._places[id(value)] = path
            return self._call("call", made.kind, made.args, made.kwargs, path, is_in_recipe=True)
        if isinstance(value, type) or inspect.isroutine(value):
            return self._named(value, path)
        if isinstance(value, Unrepeatable):
            return _unknown(value, f"a {value.what} is used up when it has been gone through")
        return _unknown(value, f"nobody has kept what it was made with: {_HINT}")

    def _named(self, thing: Any, path: str, member: str = "") -> Node:
        try:
            return {KIND: "name", "of": path_of(thing) + member}
        except ValueError as error:
            return _unknown(thing, str(error))

    def _call(self, node: str, kind: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: str, is_in_recipe: bool = False) -> Node:
        try:
            of = path_of(kind)
            arguments = bound(kind, args, kwargs, is_whole=node == "call")
        except (ValueError, TypeError) as error:
            return _unknown(kind, str(error))
        values = {}
        for name, value in arguments.items():
            child = self._value(value, f"{path}.{name}", is_in_recipe)
            if unknowns_in(child) and _is_default(kind, name, value):
                continue  # some mark of the library's own; it is the default there, too
            values[name] = child
        return {KIND: node, "of": of, "with": values}

    def _optimizer(self, optimizer: Optimizer) -> Node:
        """One that was given ready made, as the recipe that the loop would follow."""
        trained = [id(each) for each in self._manager.model.parameters() if each.requires_grad]
        groups = optimizer.param_groups
        if len(groups) != 1 or [id(each) for each in groups[0]["params"]] != trained:
            return _unknown(optimizer, "it has groups of parameters of its own: give the loop a function that makes it")
        made = made_with(optimizer)
        options = optimizer.defaults if made is None else {**optimizer.defaults, **made.kwargs}
        names = list(signature_of(type(optimizer)).parameters)[1:]
        kept = {name: options[name] for name in names if name in options}
        return self._call("recipe", type(optimizer), (), kept, "optimizer")

    def _schedule(self, schedule: LRScheduler) -> Node:
        made = made_with(schedule)
        if made is None:
            return _unknown(schedule, "nobody has kept what it was made with: give the loop a Recipe, or a partial")
        first = next(iter(signature_of(made.kind).parameters))
        kwargs = {name: value for name, value in made.kwargs.items() if name != first}
        if made.args:
            names = list(signature_of(made.kind).parameters)
            kwargs |= dict(zip(names[1:], made.args[1:], strict=False))
        return self._call("recipe", made.kind, (), kwargs, "lr_schedule", is_in_recipe=True)


def bound(kind: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], is_whole: bool) -> dict[str, Any]:
    """The arguments of a call by name, defaults included; of one that is not whole, without those that are missing."""
    signature = signature_of(kind)
    if is_whole:
        found = signature.bind(*args, **kwargs)
    else:
        # What the loop gives comes first; what was given by position comes after it.
        names = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        found = signature.bind_partial(**dict(zip(names[1:], args, strict=False)), **kwargs)
    missing = {name for name in signature.parameters if name not in found.arguments}
    found.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, each in signature.parameters.items():
        if each.kind is each.VAR_KEYWORD:
            arguments |= found.arguments.get(name, {})
        elif name in found.arguments and not (name in missing and each.default is each.empty and not found.arguments[name]):
            arguments[name] = found.arguments[name]
    return arguments


def _is_default(kind: Callable[..., Any], name: str, value: Any) -> bool:
    parameter = signature_of(kind).parameters.get(name)
    return parameter is not None and parameter.default is value


def _unknown(value: Any, why: str) -> Node:
    what = getattr(value, "__qualname__", None) or type(value).__qualname__
    return {KIND: "unknown", "what": str(what), "why": why}
