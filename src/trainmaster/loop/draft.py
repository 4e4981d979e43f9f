"""Draws the blueprint of a loop: what it and all its parts were made with, as far as anybody has kept it."""

from __future__ import annotations

import enum
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Any, Final

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.free import Config
from trainmaster.config.import_path import is_of_python, path_of
from trainmaster.config.secret_fields import masked_value
from trainmaster.config.secrets import Mask
from trainmaster.loop.blueprint import KIND, MAX_DEPTH, PLAIN, Node, unknowns_in
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.recipe import Recipe
from trainmaster.loop.setup import Setup
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages.extensions import named
from trainmaster.stages.made_with import Made, Unkept, made_with

LEFT_OUT: Final = ("train_dir", "writer")
"""Arguments of a loop that say where it writes: another one writes elsewhere."""
_MADE_BY_THE_LOOP: Final = ("optimizer", "lr_schedule")
_LOADER: Final = "checkpoint_loader"
_HINT: Final = "mark its class @tracked, or make it by a Recipe"
_MOST_BYTES: Final = 2**24
"""Of tensors and arrays: each checkpoint has them."""


def blueprint_of(manager: TrainManager) -> Node:
    """How a loop was made, with its extensions as they are now."""
    made = made_with(manager)
    assert made is not None  # every Extensible remembers
    try:
        return _Draft(manager).drawn(made)
    except (ValueError, TypeError) as error:  # a class that cannot be imported, or has a signature that tells nothing
        return _unknown(made.kind, str(error))


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
        self._mask = Mask.of().of_strong()
        self._places: dict[int, str] = {}
        """Where each object is, so that one that is there twice is made once."""
        self._open: set[int] = {id(manager)}
        """What is being drawn, and cannot be an argument of its own."""
        self._num_bytes = 0

    def drawn(self, made: Made) -> Node:
        of = path_of(made.kind)
        arguments = bound(made)
        values = {name: self._argument(name, value) for name, value in arguments.items() if name not in (*LEFT_OUT, "extensions")}
        if "extensions" in arguments:
            values["extensions"] = self._extensions(arguments["extensions"])
        return {KIND: "call", "of": of, "with": values}

    def _argument(self, name: str, value: Any) -> Any:
        if name not in _MADE_BY_THE_LOOP:
            return self._value(value, name)
        if isinstance(value, Optimizer):
            return self._optimizer(value)
        if isinstance(value, LRScheduler):
            made = made_with(value)
            lost = _unknown(value, "nobody has kept what it was made with: give the loop a Recipe, or a partial")
            return lost if made is None else self._followed(made, name)
        if isinstance(value, type):
            return self._followed(Made(value, (), {}), name)
        if isinstance(value, Recipe):
            return self._followed(Made(value.kind, (None, *value.args), value.kwargs), name)
        if isinstance(value, functools.partial) and not value.args:
            return self._call("partial", Made(value.func, (), value.keywords), name, is_first_given=True)
        return self._value(value, name)

    def _extensions(self, given: Any) -> Any:
        """Those that the loop has now, but for what it brings along itself."""
        kind = type(self._manager)
        if isinstance(given, Unkept):
            return _unknown(given, given.why)
        is_own = kind.__init__ is not TrainManager.__init__
        wanted = {id(each) for _, each in named(given)}  # such a constructor may add others
        brought = {id(each) for _, each in named(kind._class_extensions)}
        found = {}
        for name, each in self._manager.extensions.items():
            if name == _LOADER or type(each) in (Setup, EvalState) or type(each).__module__.startswith("trainmaster.manager"):
                continue
            if id(each) in brought or (is_own and id(each) not in wanted):
                continue
            num_places = len(self._places)
            node = self._value(each, f"extensions.{name}")
            is_missed = getattr(each, "is_observer", False) is not True
            if is_missed or not unknowns_in(node):
                found[name] = node
            else:
                self._forget_places(num_places)  # training is the same without an observer
        return {KIND: "pairs", "with": found} if is_own and not isinstance(given, Mapping) else found

    # ---- values

    def _value(self, value: Any, path: str, are_recipes_made: bool = False) -> Any:
        if type(value) is str and self._is_secret(value, path):
            return _unknown("text", "it looks like a secret, and is not stored")
        if type(value) in PLAIN:
            return value
        if path.count(".") > MAX_DEPTH:
            return _unknown(value, "it is nested too deep")
        if type(value) in (list, tuple, torch.Size):
            kind = list if type(value) is list else tuple
            return kind(self._value(each, f"{path}.{number}", are_recipes_made) for number, each in enumerate(value))
        if type(value) in (dict, OrderedDict):
            return self._dict(value, path, are_recipes_made)
        if isinstance(value, Recipe):
            if are_recipes_made:
                return self._call("call", Made(value.kind, value.args, value.kwargs, are_recipes_made=True), path)
            return self._call("recipe", Made(value.kind, value.args, value.kwargs), path)
        if isinstance(value, functools.partial):
            return self._call("partial", Made(value.func, value.args, value.keywords), path)
        if isinstance(value, Made):  # of an argument that became the object itself
            return self._call("call", value, path)
        if isinstance(value, Unkept):
            return _unknown(value, value.why)
        is_array = isinstance(value, torch.Tensor | np.ndarray)
        if made_with(value) is not None:
            num_places = len(self._places)
            node = self._object(value, path)
            if not is_array or not unknowns_in(node):
                return node
            self._forget_places(num_places)  # one whose making is not known has still its values
        if is_array:
            return self._array(value)
        if isinstance(value, Config | AnyConfig):
            return self._config(value, path)
        if isinstance(value, enum.Enum):
            return self._member(value)
        if isinstance(value, torch.dtype):
            return {KIND: "name", "of": str(value).replace("torch.", "torch:")}
        if isinstance(value, torch.device):
            return {KIND: "device", "of": str(value)}
        if isinstance(value, np.generic):
            return self._value(value.item(), path)
        if isinstance(value, PathLike):
            return {KIND: "path", "of": fspath(value)}
        if isinstance(value, type) or inspect.isroutine(value):
            return self._named(value)
        if getattr(type(value), "__module__", "") == "builtins":
            return _unknown(value, "a value of this type is not stored")
        return _unknown(value, f"nobody has kept what it was made with: {_HINT}")

    def _is_secret(self, text: str, path: str) -> bool:
        name = next((part for part in reversed(path.split(".")) if not part.isdigit()), "")
        return masked_value(name, text) != text or self._mask.is_in(text)

    def _dict(self, value: dict[Any, Any], path: str, are_recipes_made: bool) -> Any:
        found = {str(key): self._value(each, f"{path}.{key}", are_recipes_made) for key, each in value.items()}
        if type(value) is dict and KIND not in value and all(type(key) is str for key in value):
            return found
        if len(found) < len(value) or not all(type(key) in PLAIN for key in value):
            return _unknown(value, "its keys are not plain names or numbers")
        return {KIND: "dict", "of": type(value).__name__, "keys": list(value), "with": found}

    def _array(self, value: torch.Tensor | np.ndarray[Any, Any]) -> Any:
        if self._num_bytes + value.nbytes > _MOST_BYTES:
            return _unknown(value, "it is too large for each checkpoint: let a function marked @tracked make it")
        self._num_bytes += value.nbytes
        return value

    def _config(self, value: Config | AnyConfig, path: str) -> Node:
        node = self._named(type(value))
        if "of" not in node:
            return node
        values: dict[str, Any] = value.asdict() if isinstance(value, Config) else value.to_dict()  # type: ignore[attr-defined]
        return {**node, KIND: "config", "with": {name: self._value(each, f"{path}.{name}") for name, each in values.items()}}

    def _object(self, value: Any, path: str) -> Node:
        if id(value) in self._open:
            return _unknown(value, "it is among the arguments of the call that made it")
        if id(value) in self._places:
            return {KIND: "same", "as": self._places[id(value)]}
        made = made_with(value)
        assert made is not None
        self._open.add(id(value))
        node = self._call("call", made, path)
        self._open.remove(id(value))
        self._places[id(value)] = path
        return node

    def _forget_places(self, num_left: int) -> None:
        """Nothing is the same as what was drawn, and left out."""
        while len(self._places) > num_left:
            self._places.popitem()

    def _member(self, value: enum.Enum) -> Node:
        if value.name not in type(value).__members__:
            return _unknown(value, "it is a union of flags, which has no name")
        node = self._named(type(value))
        return {**node, "of": f"{node['of']}.{value.name}"} if "of" in node else node

    def _named(self, thing: Any) -> Node:
        try:
            return {KIND: "name", "of": path_of(thing)}
        except ValueError as error:
            return _unknown(thing, str(error))

    def _call(self, node: str, made: Made, path: str, is_first_given: bool = False) -> Node:
        try:
            of = path_of(made.kind)
            arguments = bound(made, is_first_given) if node == "call" or is_first_given else given(made)
        except (ValueError, TypeError) as error:
            return _unknown(made.kind, str(error))
        if is_of_python(of):
            return _unknown(
                made.kind, f"`{of}` is of Python's own library, of which nothing is called: call it in a function marked @tracked"
            )
        values = {}
        for name, value in arguments.items():
            num_places = len(self._places)
            child = self._value(value, f"{path}.{name}", made.are_recipes_made)
            if unknowns_in(child) and _is_default(made.kind, name, value):
                self._forget_places(num_places)
                continue  # some mark of the library's own; it is the default there, too
            values[name] = child
        return {KIND: node, "of": of, "with": values}

    def _optimizer(self, optimizer: Optimizer) -> Node:
        """One that was given ready made, as the recipe that the loop would follow."""
        trained = [id(each) for each in self._manager.model.parameters() if each.requires_grad]
        groups = optimizer.param_groups
        if len(groups) != 1 or [id(each) for each in groups[0]["params"]] != trained:
            return _unknown(optimizer, "it has groups of parameters of its own, or frozen ones: give the loop a function that makes it")
        made = made_with(optimizer)
        if made is not None:
            return self._followed(made, "optimizer")
        names = list(signature_of(type(optimizer)).parameters)[1:]
        lost = [name for name in names if name not in optimizer.defaults]
        if lost:
            return _unknown(optimizer, f"it does not tell its `{lost[0]}`: make it by a Recipe")
        return self._followed(Made(type(optimizer), (), {name: optimizer.defaults[name] for name in names}), "optimizer")

    def _followed(self, made: Made, path: str) -> Node:
        """The recipe of a call, without its first argument, which the loop gives."""
        try:
            names = list(signature_of(made.kind).parameters)
        except (ValueError, TypeError) as error:
            return _unknown(made.kind, str(error))
        kwargs = {**dict(zip(names, made.args, strict=False)), **made.kwargs}
        kwargs.pop(names[0], None)
        return self._call("recipe", made._replace(args=(), kwargs=kwargs), path, is_first_given=True)


def bound(made: Made, is_first_given: bool = False) -> dict[str, Any]:
    """The arguments of a call by name, defaults included; where somebody else gives the first, without it."""
    signature = signature_of(made.kind)
    found = signature.bind_partial(**made.kwargs) if is_first_given else signature.bind(*made.args, **made.kwargs)
    found.apply_defaults()
    if is_first_given:
        found.arguments.pop(next(iter(signature.parameters)), None)
    arguments: dict[str, Any] = {}
    for name, each in signature.parameters.items():
        if each.kind is each.VAR_KEYWORD:
            twice = found.arguments.get(name, {}).keys() & (signature.parameters.keys() - {name})
            if twice:
                raise ValueError(f"it has two arguments with the name `{min(twice)}`")
            arguments |= found.arguments.get(name, {})
        elif name in found.arguments and (each.kind is not each.VAR_POSITIONAL or found.arguments[name]):
            arguments[name] = found.arguments[name]
    return arguments


def given(made: Made) -> dict[str, Any]:
    """The arguments of a call that somebody else completes, as they are: what has only a place by its number, and no defaults.

    Nobody knows what will come before, and a default could be in its way.
    """
    signature_of(made.kind).bind_partial(**made.kwargs)
    return {**{str(number): value for number, value in enumerate(made.args)}, **made.kwargs}


def _is_default(kind: Callable[..., Any], name: str, value: Any) -> bool:
    parameter = signature_of(kind).parameters.get(name)
    return parameter is not None and parameter.default is value


def _unknown(value: Any, why: str) -> Node:
    what = value.what if isinstance(value, Unkept) else getattr(value, "__qualname__", None) or type(value).__qualname__
    return {KIND: "unknown", "what": str(what), "why": why}
