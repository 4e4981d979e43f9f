"""Builds a loop from its blueprint. Overrides can change the parameters of the loop and of the objects in it.

Building a loop imports and calls the classes and functions that its blueprint names.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import BoundArguments
from pathlib import Path
from typing import Any, Final

import torch

from trainmaster.config.import_path import is_in_stdlib, resolve_import_path
from trainmaster.errors import ConfigError, SettingError, StateError, TrainmasterError, did_you_mean
from trainmaster.loop.blueprint import KIND, Node, child_path, children_of, is_node, leaves_of, parts_of, signature_of, unknowns_in
from trainmaster.loop.recipe import Recipe, remembered


@dataclass(frozen=True, slots=True)
class Given:
    """A value from an override. It replaces a part of a blueprint, and is used unchanged."""

    value: Any


_ALWAYS_OBJECTS: Final = {"model", "loss", "optimizer", "lr_schedule"}


def dotted_overrides(root: Node, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Convert nested overrides to full dotted names: `{"model": {"threshold": 0.7}}` becomes `{"model.threshold": 0.7}`.

    If an override is a dict and has the name of an object in the blueprint, the dict contains arguments for that object.
    Any other dict is a plain value.
    """
    kinds = ("call", "recipe", "partial", "config", "same")
    objects = _ALWAYS_OBJECTS | {name for name, each in parts_of(root) if is_node(each) and each[KIND] in kinds}
    dotted: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if type(value) is dict and value and name in objects:
            for part, each in value.items():
                add(child_path(name, str(part)), each)
        elif name in dotted:
            raise SettingError(f"the override `{name}` is given twice", hint="use either a dotted name or a nested dict")
        else:
            dotted[name] = value

    for name, value in overrides.items():
        add(name, value)
    return dotted


def overridden(root: Node, overrides: Mapping[str, Any], where: str) -> Node:
    """Return the blueprint with new values for some of its parameters. Raise one error that lists all unknown names."""
    problems = []
    for name, value in overrides.items():
        try:
            root = _replace(root, name.split("."), value)
        except LookupError as error:
            problems.append(f"there is no parameter `{name}`; {did_you_mean(name, _names(root)) or error.args[0]}")
        except _UnknownPartError as error:
            problems.append(f"there is no parameter `{name}`; {error}")
    if problems:
        raise SettingError(problems[0], also="\n".join(problems[1:]) or None, where=where, hint="`parameters_in(file)` lists all of them")
    return root


class _UnknownPartError(Exception): ...


def _replace(node: Any, parts: list[str], value: Any) -> Any:
    kind = node[KIND] if is_node(node) else None
    if not parts:
        return Given(value() if kind in ("call", "same") and isinstance(value, Recipe) else value)  # the recipe creates the new object
    if kind == "same":
        raise _UnknownPartError(f"it is the same object as `{node['as']}`: override it there")
    if kind == "unknown":
        raise _UnknownPartError(f"the object that contains it was not recorded: {node['what']}: {node['why']}")
    name, rest = parts[0], parts[1:]
    children, parameters = children_of(node), _parameters(node)
    if name not in children and (rest or name not in parameters):
        known = ", ".join(sorted({*children, *parameters}))
        raise LookupError(f"known parameters: {known}" if known else "it has no parameters")
    child = _replace(children.get(name), rest, value)
    if kind is not None:
        return {**node, "with": {**node["with"], name: child}}
    if isinstance(node, dict):
        return {**node, name: child}
    return type(node)(child if str(number) == name else each for number, each in enumerate(node))


def _names(root: Node) -> list[str]:
    leaves = {path for path, _ in leaves_of(root)}
    return sorted({*leaves, *(path.rpartition(".")[0] for path in leaves), *_parameters(root)} - {""})


def _parameters(node: Any) -> list[str]:
    """Return the parameters of the class or function that a node names, or an empty list if the import fails."""
    if not is_node(node) or node[KIND] not in ("call", "recipe", "partial"):
        return []
    try:
        parameters = signature_of(resolve_import_path(node["of"])).parameters
    except (TrainmasterError, ImportError, ValueError, TypeError):
        return []
    return [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD]


def build(root: Node, where: str, stored: Node | None = None) -> Any:
    """Build the object that a blueprint describes. `stored` is the blueprint without overrides."""
    missing = unknowns_in(root)
    if missing:
        name = next(iter(missing))
        raise StateError(
            f"`{name}` was not recorded, and cannot be built again",
            where=where,
            why="\n".join(f"`{name}`: {why}" for name, why in missing.items()),
            hint=f'pass it: overrides={{"{name}": ...}}',
        )
    return _Builder(where, root if stored is None else stored).value(root, "")


class _Builder:
    def __init__(self, where: str, stored: Node) -> None:
        self._where, self._stored = where, stored
        self._built: dict[str, Any] = {}
        """The objects built so far, by path."""
        self._open: set[str] = set()

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, Given):
            self._built[path] = value.value  # other paths may refer to the same object
            return value.value
        if is_node(value):
            return self._node(value, path)
        if isinstance(value, dict):
            return self._parts(value, path)
        if type(value) in (list, tuple):
            return type(value)(self._parts(children_of(value), path).values())
        return value

    def _parts(self, parts: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(each, child_path(path, name)) for name, each in parts.items()}

    def _node(self, node: Node, path: str) -> Any:
        match node[KIND]:
            case "name":
                return self._imported(node, path)
            case "same":
                return self._same(node["as"], path)
            case "device":
                return torch.device(node["of"])
            case "path":
                return Path(node["of"])
            case "pairs":
                return list(self._parts(node["with"], path).items())
            case "dict":
                items = self._parts(node["with"], path).values()
                return (OrderedDict if node["of"] == "OrderedDict" else dict)(zip(node["keys"], items, strict=True))
            case "config":
                return self._callable(node, path)(**self._parts(node["with"], path))
            case "recipe" | "partial" as kind:
                called, values = self._callable(node, path), self._parts(node["with"], path)
                self._check_names(called, values, path)
                first = [values.pop(name) for name in list(values) if name.isdigit()]
                return (Recipe if kind == "recipe" else functools.partial)(called, *first, **values)
            case "call":
                called = self._callable(node, path)
                args, kwargs = self._bind(called, self._parts(node["with"], path), path)
                try:
                    self._built[path] = remembered(called(*args, **kwargs), called, args, kwargs)
                except Exception as error:
                    error.add_note(f"while rebuilding `{path or 'the loop'}` of {self._where} with {node['of']}")
                    raise
                return self._built[path]
        raise StateError(f"`{path}` is a node of the unknown kind {node[KIND]!r:.40}", where=self._where)

    def _same(self, shared: str, path: str) -> Any:
        """Return the object at the path `shared`.

        The object has not been built if an override replaced its container. In this case, build it from the stored blueprint.
        """
        if shared not in self._built:
            stored = next((each for name, each in parts_of(self._stored) if name == shared), None)
            if stored is None or shared in self._open:
                raise StateError(f"`{path}` should be the same object as `{shared}`, which does not exist", where=self._where)
            self._open.add(shared)
            self._built[shared] = self.value(stored, shared)
        return self._built[shared]

    def _callable(self, node: Node, path: str) -> Callable[..., Any]:
        if not is_in_stdlib(node["of"]):  # never import from the standard library
            found = self._imported(node, path)
            module = getattr(found, "__module__", None)  # `torch:os.system` is in the standard library, too
            if callable(found) and isinstance(module, str) and not is_in_stdlib(module):
                return found  # type: ignore[no-any-return]
        raise StateError(
            f"`{path}` would be built by calling `{node['of']}`, which is refused",
            where=self._where,
            why="a blueprint calls only classes and functions that are not in Python's standard library",
            hint="this file was probably written by hand: do not trust it",
        )

    def _imported(self, node: Node, path: str) -> Any:
        try:
            return resolve_import_path(node["of"])
        except (ConfigError, ModuleNotFoundError) as error:
            raise StateError(
                f"`{path or 'the loop'}` was a `{node['of']}`, which no longer exists",
                where=self._where,
                why=error.problems[0].text if isinstance(error, ConfigError) else str(error),
                hint=f"if it has moved, import it in `{node['of'].partition(':')[0]}` from its new module;"
                " if Python does not find it, pass package_dir",
            ) from error

    def _check_names(self, called: Callable[..., Any], values: dict[str, Any], path: str) -> None:
        """Raise an error if the callable no longer accepts one of the arguments."""
        parameters = signature_of(called).parameters
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return
        for name in values:
            if name not in parameters and not name.isdigit():
                raise StateError(
                    f"`{child_path(path, name)}` is stored, but {_name_of(called)} no longer takes `{name}`",
                    where=self._where,
                    hint=did_you_mean(name, parameters) or "restore the old class, or train again",
                )

    def _bind(self, called: Callable[..., Any], values: dict[str, Any], path: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the keyword arguments of a call. Raise an error if they do not match the signature of the callable."""
        self._check_names(called, values, path)
        signature = signature_of(called)
        named = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        bound = BoundArguments(signature, OrderedDict((name, each) for name, each in values.items() if name in named))
        bound.apply_defaults()  # an argument without a value may come before one that can only be positional
        kwargs = {**bound.kwargs, **{name: each for name, each in values.items() if name not in named}}
        try:
            signature.bind(*bound.args, **kwargs)
        except TypeError as error:
            required = [name for name in named if name not in bound.arguments]
            raise StateError(
                f"`{path or 'the loop'}` cannot be built again: {_name_of(called)}: {error}",
                where=self._where,
                hint=f'pass it: overrides={{"{child_path(path, required[0])}": ...}}' if required else None,
            ) from error
        stars = {name: values.get(name) for name, each in named.items() if each.kind is each.VAR_POSITIONAL}
        if any(stars.values()) or any(each.kind is each.POSITIONAL_ONLY for each in named.values()):
            return bound.args, kwargs
        return (), {name: each for name, each in values.items() if name not in stars}  # a decorated constructor may accept only keywords


def _name_of(called: Callable[..., Any]) -> str:
    return getattr(called, "__qualname__", type(called).__qualname__)
