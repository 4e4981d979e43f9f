"""Builds a loop from its blueprint, with some of its parameters changed. What it names is imported and called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from trainmaster.config.import_path import found_at
from trainmaster.errors import ConfigError, SettingError, StateError, TrainmasterError, did_you_mean
from trainmaster.loop.blueprint import KIND, Node, children_of, is_node, leaves_of, signature_of, unknowns_in
from trainmaster.loop.recipe import Recipe, remembered

_UNCALLED: Final = frozenset(sys.stdlib_module_names) | {"builtins"}
"""Nothing of these is called: no loop is made of `os` and `subprocess`, whatever a file says."""


class Given(NamedTuple):
    """A value in a blueprint that is taken as it is."""

    value: Any


def overridden(root: Node, overrides: Mapping[str, Any], where: str) -> Node:
    """The blueprint with other values for some of its parameters; unknown names are refused, all at once."""
    problems = []
    for name, value in overrides.items():
        try:
            root = _with(root, root, name.split("."), value)
        except LookupError as error:
            problems.append(f"there is no parameter `{name}`; {did_you_mean(name, _names(root)) or error}")
    if problems:
        raise SettingError(problems[0], also="\n".join(problems[1:]) or None, where=where, hint="`parameters_in(file)` lists all of them")
    return root


def _with(root: Node, node: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return Given(value)
    if is_node(node) and node[KIND] == "same":
        raise LookupError(f"it is the same object as `{node['as']}`: name it there")
    name, rest = parts[0], parts[1:]
    children = children_of(node)
    if name not in children and not (not rest and is_node(node) and name in _parameters(node)):
        known = sorted({*children, *(_parameters(node) if is_node(node) else ())})
        raise LookupError(f"there are {', '.join(known)}" if known else "there is nothing below")
    child = _with(root, children.get(name), rest, value)
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
        return list(signature_of(found_at(node["of"])).parameters) if "with" in node else []
    except (TrainmasterError, ImportError, ValueError, TypeError):
        return []


def build(root: Node, where: str) -> Any:
    """The object that a blueprint describes."""
    missing = unknowns_in(root)
    if missing:
        name = next(iter(missing))
        raise StateError(
            f"`{name}` was not kept, and cannot be made again",
            where=where,
            why="\n".join(f"`{name}` is a {why}" for name, why in missing.items()),
            hint=f'give it: overrides={{"{name}": ...}}',
        )
    return _Builder(where).value(root, "")


class _Builder:
    def __init__(self, where: str) -> None:
        self._where = where
        self._made: dict[str, Any] = {}

    def value(self, value: Any, path: str, is_in_recipe: bool = False) -> Any:
        if isinstance(value, Given):
            return value.value
        if is_node(value):
            return self._node(value, path, is_in_recipe)
        if isinstance(value, dict):
            return {name: self.value(each, _below(path, name), is_in_recipe) for name, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.value(each, _below(path, str(number)), is_in_recipe) for number, each in enumerate(value))
        return value

    def _node(self, node: Node, path: str, is_in_recipe: bool) -> Any:
        kind = node[KIND]
        if kind == "name":
            return self._found(node, path)
        if kind == "same":
            return self._made[node["as"]]
        if kind == "device":
            return torch.device(node["of"])
        if kind == "path":
            return Path(node["of"])
        if kind not in ("call", "recipe"):
            raise StateError(f"`{path}` is a {kind!r:.40}, which this version does not know", where=self._where)
        called = self._called(node, path)
        is_recipe = kind == "recipe" or is_in_recipe
        values = {name: self.value(each, _below(path, name), is_recipe) for name, each in node["with"].items()}
        args, kwargs = self._arranged(called, values, path, is_whole=not is_recipe)
        if is_recipe:
            return Recipe(called, *args, **kwargs)
        try:
            made = remembered(called(*args, **kwargs), called, tuple(args), kwargs)
        except Exception as error:
            error.add_note(f"while making `{path or 'the loop'}` of {self._where} again, by {node['of']}")
            raise
        self._made[path] = made
        return made

    def _called(self, node: Node, path: str) -> Callable[..., Any]:
        found = self._found(node, path)
        if str(node["of"]).partition(":")[0].partition(".")[0] in _UNCALLED or not callable(found):
            raise StateError(
                f"`{path}` would be made by calling `{node['of']}`, which is refused",
                where=self._where,
                why="classes and functions of Python's own library are no part of a training",
                hint="somebody has written this file by hand: do not trust it",
            )
        result: Callable[..., Any] = found
        return result

    def _found(self, node: Node, path: str) -> Any:
        try:
            return found_at(str(node["of"]))
        except (ConfigError, ModuleNotFoundError) as error:
            problem = error.problems[0].text if isinstance(error, ConfigError) else str(error)
            module = str(node["of"]).partition(":")[0]
            raise StateError(
                f"`{path or 'the loop'}` was a `{node['of']}`, which is not there any more",
                where=self._where,
                why=problem,
                hint=f"if it has moved, import it in `{module}` from its new place; if Python does not find it, give package_dir",
            ) from error

    def _arranged(self, called: Callable[..., Any], values: dict[str, Any], path: str, is_whole: bool) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the call takes them now."""
        parameters = signature_of(called).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for name in values:
            if name not in parameters and not takes_any:
                raise StateError(
                    f"`{_below(path, name)}` is stored, but {called.__qualname__} takes no `{name}` any more",
                    where=self._where,
                    hint=did_you_mean(name, parameters) or "restore the class as it was, or train again",
                )
        stars = [name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL and values.get(name)]
        args: list[Any] = []
        for name, each in parameters.items():
            if each.kind is each.VAR_POSITIONAL:
                args.extend(values.pop(name, ()))
            elif name in values and (each.kind is each.POSITIONAL_ONLY or (stars and each.kind is each.POSITIONAL_OR_KEYWORD)):
                args.append(values.pop(name))
        if is_whole:
            try:
                signature_of(called).bind(*args, **values)
            except TypeError as error:
                lacking = [
                    name
                    for name, each in parameters.items()
                    if each.default is inspect.Parameter.empty and each.kind is each.POSITIONAL_OR_KEYWORD and name not in values
                ]
                raise StateError(
                    f"`{path or 'the loop'}` cannot be made again: {called.__qualname__}: {error}",
                    where=self._where,
                    hint=f'give it: overrides={{"{_below(path, lacking[0])}": ...}}' if lacking else None,
                ) from error
        return args, values


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
