"""Builds a loop from its blueprint, with some of its parameters changed. What it names is imported and called."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainmaster.config.import_path import found_at, is_of_python
from trainmaster.errors import ConfigError, SettingError, StateError, TrainmasterError, did_you_mean
from trainmaster.loop.blueprint import KIND, Node, below, children_of, is_node, leaves_of, places_in, unknowns_in
from trainmaster.loop.draft import signature_of
from trainmaster.loop.recipe import Recipe, remembered


@dataclass(frozen=True, slots=True)
class Given:
    """A value in a blueprint that is taken as it is."""

    value: Any


def overridden(root: Node, overrides: Mapping[str, Any], where: str) -> Node:
    """The blueprint with other values for some of its parameters; unknown names are refused, all at once."""
    problems = []
    for name, value in overrides.items():
        try:
            root = _with(root, name.split("."), value)
        except LookupError as error:
            is_told = isinstance(error, _SharedError)
            problems.append(f"there is no parameter `{name}`; {error if is_told else did_you_mean(name, _names(root)) or error}")
    if problems:
        raise SettingError(problems[0], also="\n".join(problems[1:]) or None, where=where, hint="`parameters_in(file)` lists all of them")
    return root


class _SharedError(LookupError): ...


def _with(node: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        is_made = is_node(node) and node[KIND] in ("call", "same")  # in the place of an object a recipe stands for what it makes
        return Given(value() if is_made and isinstance(value, Recipe) else value)
    if is_node(node) and node[KIND] == "same":
        raise _SharedError(f"it is the same object as `{node['as']}`: name it there")
    name, rest = parts[0], parts[1:]
    children = children_of(node)
    if name not in children and not (not rest and is_node(node) and name in _parameters(node)):
        known = sorted({*children, *(_parameters(node) if is_node(node) else ())})
        raise LookupError(f"there are {', '.join(known)}" if known else "there is nothing below")
    child = _with(children.get(name), rest, value)
    if is_node(node):
        return {**node, "with": {**node["with"], name: child}}
    if isinstance(node, dict):
        return {**node, name: child}
    return type(node)(child if str(number) == name else each for number, each in enumerate(node))


def _names(root: Node) -> list[str]:
    names = {path for path, _ in leaves_of(root)}
    whole = {path.rpartition(".")[0] for path in names}
    return sorted({*names, *whole, *_parameters(root)} - {""})


def _parameters(node: Node) -> list[str]:
    """What the class of a node takes, if it is there."""
    try:
        parameters = signature_of(found_at(node["of"])).parameters if node[KIND] in ("call", "recipe", "partial") else {}
        return [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD]
    except (TrainmasterError, ImportError, ValueError, TypeError):
        return []


def build(root: Node, where: str, stored: Node | None = None) -> Any:
    """The object that a blueprint describes; `stored` is the blueprint as it was, without overrides."""
    missing = unknowns_in(root)
    if missing:
        name = next(iter(missing))
        raise StateError(
            f"`{name}` was not kept, and cannot be made again",
            where=where,
            why="\n".join(f"`{name}` is a {why}" for name, why in missing.items()),
            hint=f'give it: overrides={{"{name}": ...}}',
        )
    return _Builder(where, root if stored is None else stored).value(root, "")


class _Builder:
    def __init__(self, where: str, stored: Node) -> None:
        self._where = where
        self._stored = stored
        self._made: dict[str, Any] = {}
        self._open: set[str] = set()

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, Given):
            self._made[path] = value.value  # others may have the same
            return value.value
        if is_node(value):
            return self._node(value, path)
        if isinstance(value, dict):
            return self._parts(value, path)
        if type(value) in (list, tuple):
            return type(value)(self._parts(children_of(value), path).values())
        return value

    def _parts(self, parts: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(each, below(path, name)) for name, each in parts.items()}

    def _node(self, node: Node, path: str) -> Any:
        kind = node[KIND]
        if kind == "name":
            return self._found(node, path)
        if kind == "same":
            return self._same(node["as"], path)
        if kind == "device":
            return torch.device(node["of"])
        if kind == "path":
            return Path(node["of"])
        if kind == "pairs":
            return list(self._parts(node["with"], path).items())
        if kind == "dict":
            values = self._parts(node["with"], path).values()
            return (OrderedDict if node["of"] == "OrderedDict" else dict)(zip(node["keys"], values, strict=True))
        if kind == "config":
            return self._called(node, path)(**self._parts(node["with"], path))
        called = self._called(node, path)
        args, kwargs = self._arranged(called, self._parts(node["with"], path), path, is_whole=kind == "call")
        if kind == "recipe":
            return Recipe(called, *args, **kwargs)
        if kind == "partial":
            return functools.partial(called, *args, **kwargs)
        try:
            made = remembered(called(*args, **kwargs), called, tuple(args), kwargs)
        except Exception as error:
            error.add_note(f"while making `{path or 'the loop'}` of {self._where} again, by {node['of']}")
            raise
        self._made[path] = made
        return made

    def _same(self, place: str, path: str) -> Any:
        """What was made for another place; where that was overridden as a part of something, what would have been."""
        if place not in self._made:
            found = next((each for name, each in places_in(self._stored) if name == place), None)
            if found is None or place in self._open:
                raise StateError(f"`{path}` is said to be the same as `{place}`, which is not there", where=self._where)
            self._open.add(place)
            self._made[place] = self.value(found, place)
        return self._made[place]

    def _called(self, node: Node, path: str) -> Callable[..., Any]:
        if not is_of_python(node["of"]):  # which is not even imported
            found = self._found(node, path)
            module = getattr(found, "__module__", None)  # `torch:os.system` is of Python, too
            if callable(found) and isinstance(module, str) and not is_of_python(module):
                return found  # type: ignore[no-any-return]
        raise StateError(
            f"`{path}` would be made by calling `{node['of']}`, which is refused",
            where=self._where,
            why="a training is made of classes and functions, and of none of Python's own library",
            hint="somebody has written this file by hand: do not trust it",
        )

    def _found(self, node: Node, path: str) -> Any:
        try:
            return found_at(node["of"])
        except (ConfigError, ModuleNotFoundError) as error:
            problem = error.problems[0].text if isinstance(error, ConfigError) else str(error)
            module = node["of"].partition(":")[0]
            raise StateError(
                f"`{path or 'the loop'}` was a `{node['of']}`, which is not there any more",
                where=self._where,
                why=problem,
                hint=f"if it has moved, import it in `{module}` from its new place; if Python does not find it, give package_dir",
            ) from error

    def _arranged(self, called: Callable[..., Any], values: dict[str, Any], path: str, is_whole: bool) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the call takes them now."""
        name_of = getattr(called, "__qualname__", type(called).__qualname__)
        signature = signature_of(called)
        parameters = signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        args: list[Any] = []
        if not is_whole:
            args = [values.pop(name) for name in list(values) if name.isdigit()]
        for name in values:
            if name not in parameters and not takes_any:
                raise StateError(
                    f"`{below(path, name)}` is stored, but {name_of} takes no `{name}` any more",
                    where=self._where,
                    hint=did_you_mean(name, parameters) or "restore the class as it was, or train again",
                )
        if not is_whole:
            return args, values
        has_stars = any(each.kind is each.VAR_POSITIONAL and values.get(name) for name, each in parameters.items())
        for name, each in parameters.items():
            if each.kind is each.VAR_POSITIONAL:
                args.extend(values.pop(name, ()))
            elif each.kind is each.POSITIONAL_ONLY or (has_stars and each.kind is each.POSITIONAL_OR_KEYWORD):
                if name in values:
                    args.append(values.pop(name))
                elif each.default is not each.empty:
                    args.append(each.default)  # for those that come after it
        try:
            signature.bind(*args, **values)
        except TypeError as error:
            lacking = [
                name
                for name, each in parameters.items()
                if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and name not in values
            ]
            raise StateError(
                f"`{path or 'the loop'}` cannot be made again: {name_of}: {error}",
                where=self._where,
                hint=f'give it: overrides={{"{below(path, lacking[0])}": ...}}' if lacking and not args else None,
            ) from error
        return args, values
