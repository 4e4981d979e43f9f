"""Finds the packages that a program imports, and their installed versions."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from typing import NamedTuple

from trainmaster.extensions.environment_facts import list_packages

_INSTALLERS = {"pip", "setuptools", "wheel"}
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_EXTRAS = {"TensorBoard": "tensorboard"}
"""Maps names in trainmaster to the pip extra (optional dependency) that they need."""


class Requirements(NamedTuple):
    packages: dict[str, str]
    """The packages that the code imports, with their versions. trainmaster is left out, and torch is always included."""
    extras: tuple[str, ...]
    """The pip extras of trainmaster that the code needs."""
    constraints: dict[str, str]
    """The versions of all installed packages that came from an index. pip applies them to the packages that it installs."""
    from_elsewhere: dict[str, str]
    """Packages that the code imports and that were not installed from an index, with their origins."""


def find_requirements(root: str) -> Requirements:
    """Return the packages that the project's loaded modules need, including those that are imported inside functions."""
    top_names, extras = _find_imports(root)
    by_module = metadata.packages_distributions()
    needed = {"torch", *(name for each in top_names for name in by_module.get(each, ()))} - {"trainmaster"}
    versions, origins = {}, {}
    for name, text in list_packages().items():
        version, _, origin = text.partition(" ")
        versions[name] = version
        if origin:
            origins[name] = origin.strip("()")
    needed = {name for name in needed if not _is_own(name, origins, root)}
    return Requirements(
        {name: versions[name] for name in sorted(needed, key=str.lower) if name in versions},
        tuple(sorted(extras)),
        {name: version for name, version in versions.items() if name.lower() not in _INSTALLERS and name not in origins},
        {name: origins[name] for name in sorted(needed) if name in origins},
    )


def _is_own(name: str, origins: dict[str, str], root: str) -> bool:
    """Return whether a package is the project itself, installed in editable mode."""
    origin = origins.get(name, "").rpartition("file://")[2]
    return bool(origin) and os.path.realpath(origin) == os.path.realpath(root)


def _find_imports(root: str) -> tuple[set[str], set[str]]:
    """Return the top-level modules that the project's loaded modules import, and the pip extras of trainmaster that they need."""
    waiting = [path for module in list(sys.modules.values()) if (path := _own_file(module, root)) is not None]
    seen, names, extras = set[str](), set[str](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = _parse(path)
        if tree is None:
            continue
        extras |= {_EXTRAS[name] for name in _mentioned(tree) if name in _EXTRAS}
        for name in _imported(tree):
            if name not in names and name not in sys.stdlib_module_names:
                names.add(name)
                waiting += _own_sources(name, root)
    return names, extras


def _own_file(module: object, root: str) -> str | None:
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    path = os.path.realpath(path)
    is_own = path.startswith(root.rstrip(os.sep) + os.sep) and not any(part in path for part in _PACKAGE_FOLDERS)
    return path if is_own and not path.startswith(_TRAINMASTER) else None


_TRAINMASTER = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep


def _own_sources(name: str, root: str) -> Iterable[str]:
    """Yield the file of a module, or all files of a package, because functions may import any of them. Skip code outside the project."""
    spec = PathFinder.find_spec(name)
    if spec is None or name == "trainmaster":
        return
    folders = [each for each in spec.submodule_search_locations or () if os.path.realpath(each).startswith(root.rstrip(os.sep) + os.sep)]
    for folder in folders:
        if not any(part in folder for part in _PACKAGE_FOLDERS):
            for parent, _, files in os.walk(folder):
                yield from (os.path.realpath(os.path.join(parent, file)) for file in files if file.endswith(".py"))
    if not folders and spec.origin is not None and spec.origin.endswith(".py") and os.path.realpath(spec.origin).startswith(root + os.sep):
        yield os.path.realpath(spec.origin)


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level names of all absolute imports in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _mentioned(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr
