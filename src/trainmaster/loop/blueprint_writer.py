"""Writes the blueprint of a loop from its recorded constructor calls."""

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
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.config import Config
from trainmaster.config.import_path import import_path_of, is_in_stdlib
from trainmaster.config.masking import Mask
from trainmaster.config.secret_patterns import masked_value
from trainmaster.loop.blueprint import KIND, PLAIN, Node, signature_of, unknowns_in
from trainmaster.loop.eval_metrics import EVAL_METRICS
from trainmaster.loop.eval_state import EvalState
from trainmaster.loop.loop_setup import Setup
from trainmaster.loop.recipe import Recipe
from trainmaster.loop.train_manager import TrainManager
from trainmaster.stages.extension_map import named_extensions
from trainmaster.stages.recorded_call import RecordedCall, UnrecordedArg, recorded_call

LEFT_OUT: Final = ("train_dir", "writer")
"""Arguments that are not stored. They determine where a loop writes, and a loop built from the blueprint writes elsewhere."""
_NOT_RECORDED: Final = "its arguments were not recorded:"
_HINT: Final = "mark its class @tracked, or create it with a Recipe"
_MAX_DEPTH: Final = 100
_MAX_BYTES: Final = 2**24
"""The maximum total size of the tensors and arrays in a blueprint, in bytes. The size is limited because every checkpoint stores them."""


def blueprint_of(loop: TrainManager) -> Node:
    """Return the blueprint of a loop. It describes the constructor call, but with the loop's current extensions."""
    call = recorded_call(loop)
    assert call is not None  # every Extensible records its constructor call
    try:
        return _Writer(loop).write(call)
    except (ValueError, TypeError) as error:  # the class cannot be imported, or has no readable signature
        return _unknown(call.kind, str(error))


class _Writer:
    """Writes the blueprint of one loop."""

    def __init__(self, loop: TrainManager) -> None:
        self._loop = loop
        self._mask = Mask.of().only_strong()
        self._paths: dict[int, str | None] = {id(loop): None}
        """The path of each object that has been written, so that an object that occurs at two paths is built only once.

        The path is None while the object is being written. An object that occurs among its own arguments cannot be built again.
        """
        self._num_bytes = 0

    def write(self, call: RecordedCall) -> Node:
        of, arguments = import_path_of(call.kind), _bind(call)
        extensions = arguments.pop("extensions", None)
        values = {name: self._argument(name, value) for name, value in arguments.items() if name not in LEFT_OUT}
        if extensions is not None:
            values["extensions"] = self._extensions(extensions, has_metrics=arguments.get("metrics") is not None)
        return {KIND: "call", "of": of, "with": values}

    def _argument(self, name: str, value: Any) -> Any:
        if name == "metrics":
            return self._if_known(lambda: self._value(value, name))  # metrics do not affect training
        if name not in ("optimizer", "lr_schedule"):
            return self._value(value, name)
        if isinstance(value, Optimizer):
            return self._optimizer(value)
        if isinstance(value, LRScheduler):
            call = recorded_call(value)
            if call is None:
                return _unknown(value, f"{_NOT_RECORDED} pass a Recipe, or a partial")
            return self._call("recipe", call, name, is_factory=True)
        if isinstance(value, type):
            return self._call("recipe", RecordedCall(value, (), {}), name, is_factory=True)
        if isinstance(value, Recipe):
            return self._call("recipe", RecordedCall(value.kind, (None, *value.args), value.kwargs), name, is_factory=True)
        if isinstance(value, functools.partial) and not value.args:
            return self._call("partial", RecordedCall(value.func, (), value.keywords), name, is_factory=True)
        return self._value(value, name)

    def _extensions(self, given: Any, has_metrics: bool) -> Any:
        """Return the current extensions, except those that the constructor adds."""
        kind = type(self._loop)
        if isinstance(given, UnrecordedArg):
            return _unknown(given, given.why)
        has_own_constructor = kind.__init__ is not TrainManager.__init__
        passed = {id(each) for _, each in named_extensions(given)}
        of_class = {id(each) for _, each in named_extensions(kind._class_extensions)}
        nodes = {}
        for name, each in self._loop.extensions.items():
            is_default = type(each) in (Setup, EvalState) or type(each).__module__.startswith("trainmaster.manager")
            is_added = id(each) in of_class or (has_own_constructor and id(each) not in passed) or (has_metrics and name == EVAL_METRICS)
            if name == "checkpoint_loader" or is_default or is_added:
                continue
            if getattr(each, "is_observer", False) is not True:
                nodes[name] = self._value(each, f"extensions.{name}")
            elif (node := self._if_known(functools.partial(self._value, each, f"extensions.{name}"))) is not None:
                nodes[name] = node
        return {KIND: "pairs", "with": nodes} if has_own_constructor and not isinstance(given, Mapping) else nodes

    def _if_known(self, write: Callable[[], Any]) -> Any:
        """Return the node that `write` returns, or None if the node contains an object that cannot be built again."""
        paths = dict(self._paths)
        node = write()
        if not unknowns_in(node):
            return node
        self._paths = paths
        return None

    # ---- values

    def _value(self, value: Any, path: str) -> Any:
        if type(value) is str and self._is_secret(value, path):
            return _unknown("text", "it looks like a secret, so it is not stored")
        if type(value) in PLAIN:
            return value
        if path.count(".") > _MAX_DEPTH:
            return _unknown(value, "it is nested too deeply")
        if type(value) in (list, tuple, torch.Size):
            kind = list if type(value) is list else tuple
            return kind(self._value(each, f"{path}.{number}") for number, each in enumerate(value))
        if type(value) in (dict, OrderedDict):
            return self._dict(value, path)
        if isinstance(value, Recipe):
            return self._call("recipe", RecordedCall(value.kind, value.args, value.kwargs), path)
        if isinstance(value, functools.partial):
            return self._call("partial", RecordedCall(value.func, value.args, value.keywords), path)
        if isinstance(value, RecordedCall):  # a recipe that was called, or an argument which the recorded call returned unchanged
            return self._call("call", value, path)
        if isinstance(value, UnrecordedArg):
            return _unknown(value, value.why)
        if isinstance(value, torch.Tensor | np.ndarray):
            node = None if recorded_call(value) is None else self._if_known(lambda: self._object(value, path))
            return self._array(value) if node is None else node
        if recorded_call(value) is not None:
            return self._object(value, path)
        return self._special(value, path)

    def _special(self, value: Any, path: str) -> Any:
        """Return the node for a value that was not created by a recorded call, such as a config, enum member, device, path or class."""
        if isinstance(value, Config | AnyConfig):
            node = self._named(type(value))
            values: dict[str, Any] = value.asdict() if isinstance(value, Config) else value.to_dict()
            parts = {name: self._value(each, f"{path}.{name}") for name, each in values.items()}
            return {**node, KIND: "config", "with": parts} if "of" in node else node
        if isinstance(value, enum.Enum):
            node = self._named(type(value))
            if value.name not in type(value).__members__:
                return _unknown(value, "it is a union of flags, which has no name")
            return {**node, "of": f"{node['of']}.{value.name}"} if "of" in node else node
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
        in_manager = "build the loop in a manager's `make_loop`, " if isinstance(value, nn.Module) else ""
        return _unknown(value, f"{_NOT_RECORDED} {in_manager}{_HINT}")

    def _is_secret(self, text: str, path: str) -> bool:
        name = next((part for part in reversed(path.split(".")) if not part.isdigit()), "")
        return masked_value(name, text) != text or self._mask.is_in(text)

    def _dict(self, value: dict[Any, Any], path: str) -> Any:
        parts = {str(key): self._value(each, f"{path}.{key}") for key, each in value.items()}
        if type(value) is dict and KIND not in value and all(type(key) is str for key in value):
            return parts
        if len(parts) < len(value) or not all(type(key) in PLAIN for key in value):
            return _unknown(value, "its keys are not plain names or numbers")
        return {KIND: "dict", "of": type(value).__name__, "keys": list(value), "with": parts}

    def _array(self, value: torch.Tensor | np.ndarray[Any, Any]) -> Any:
        if self._num_bytes + value.nbytes > _MAX_BYTES:
            return _unknown(value, "it is too large to store in each checkpoint: create it in a function marked @tracked")
        self._num_bytes += value.nbytes
        return value

    def _object(self, value: Any, path: str) -> Node:
        if id(value) in self._paths:
            known = self._paths[id(value)]
            is_open = "it is among the arguments of the call that created it"
            return _unknown(value, is_open) if known is None else {KIND: "same", "as": known}
        call = recorded_call(value)
        assert call is not None
        self._paths[id(value)] = None
        node = self._call("call", call, path)
        self._paths[id(value)] = path
        return node

    def _named(self, thing: Any) -> Node:
        try:
            return {KIND: "name", "of": import_path_of(thing)}
        except ValueError as error:
            return _unknown(thing, str(error))

    # ---- calls

    def _call(self, node: str, call: RecordedCall, path: str, is_factory: bool = False) -> Node:
        """Return the node of a call with all its arguments and defaults.

        The node of a recipe or a partial contains only the arguments that were bound in advance. The other arguments are
        passed when the recipe or the partial is called. If `is_factory` is set, the call creates the optimizer or the
        schedule: the loop passes the first argument, so it is left out, and the defaults are included.
        """
        bind = _bind_factory if is_factory else _bind if node == "call" else _bind_own
        try:
            of, parameters, arguments = import_path_of(call.kind), signature_of(call.kind).parameters, bind(call)
        except (ValueError, TypeError) as error:
            return _unknown(call.kind, str(error))
        if is_in_stdlib(of):
            why = f"`{of}` is in Python's standard library, which blueprints do not call: wrap it in a function marked @tracked"
            return _unknown(call.kind, why)
        values = {}
        for name, value in arguments.items():
            paths = dict(self._paths)
            child = self._value(value, f"{path}.{name}")
            if unknowns_in(child) and name in parameters and parameters[name].default is value:
                self._paths = paths  # the value cannot be stored, but it is the parameter's default
            else:
                values[name] = child
        return {KIND: node, "of": of, "with": values}

    def _optimizer(self, optimizer: Optimizer) -> Node:
        """Return the node of an optimizer object: a recipe that the loop can call."""
        trained = [id(each) for each in self._loop.model.parameters() if each.requires_grad]
        groups = optimizer.param_groups
        if len(groups) != 1 or [id(each) for each in groups[0]["params"]] != trained:
            return _unknown(optimizer, "it does not have exactly one group with all trainable parameters: pass a function that creates it")
        call = recorded_call(optimizer)
        if call is None:
            names = list(signature_of(type(optimizer)).parameters)[1:]
            missing = [name for name in names if name not in optimizer.defaults]
            if missing:
                return _unknown(optimizer, f"its argument `{missing[0]}` is not in its defaults: create it with a Recipe")
            call = RecordedCall(type(optimizer), (), {name: optimizer.defaults[name] for name in names})
        return self._call("recipe", call, "optimizer", is_factory=True)


def _bind(call: RecordedCall, is_partial: bool = False) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults."""
    signature = signature_of(call.kind)
    bound = (signature.bind_partial if is_partial else signature.bind)(*call.args, **call.kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, each in signature.parameters.items():
        if each.kind is each.VAR_POSITIONAL and not arguments[name]:
            del arguments[name]
        elif each.kind is each.VAR_KEYWORD:
            more = arguments.pop(name)
            if twice := more.keys() & arguments.keys():
                raise ValueError(f"it has two arguments with the name `{min(twice)}`")
            arguments |= more
    return arguments


def _bind_own(call: RecordedCall) -> dict[str, Any]:
    signature_of(call.kind).bind_partial(**call.kwargs)
    return {**{str(number): value for number, value in enumerate(call.args)}, **call.kwargs}


def _bind_factory(call: RecordedCall) -> dict[str, Any]:
    first, *others = signature_of(call.kind).parameters
    kwargs = {**dict(zip(others, call.args[1:], strict=False)), **call.kwargs}
    kwargs.pop(first, None)
    arguments = _bind(call._replace(args=(), kwargs=kwargs), is_partial=True)
    arguments.pop(first, None)
    return arguments


def _unknown(value: Any, why: str) -> Node:
    what = value.what if isinstance(value, UnrecordedArg) else getattr(value, "__qualname__", None) or type(value).__qualname__
    return {KIND: "unknown", "what": str(what), "why": why}
