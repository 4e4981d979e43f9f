"""Finds the packages that a program imports, and their installed versions."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
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
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    waiting = [os.path.realpath(path) for path in loaded if isinstance(path, str) and path.endswith(".py") and _is_in(root, path)]
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


def _is_in(root: str, path: str) -> bool:
    """Return whether a path belongs to the project, and not to a package that is installed below its root."""
    path = os.path.realpath(path)
    is_below = path.startswith(root.rstrip(os.sep) + os.sep) and not path.startswith(_TRAINMASTER)
    return is_below and not any(part in path for part in _PACKAGE_FOLDERS)


_TRAINMASTER = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep


def _own_sources(name: str, root: str) -> Iterator[str]:
    """Yield the file of a module, or all files of a package. Skip code outside the project.

    All files of a package are included, because functions may import any of them.
    """
    spec = PathFinder.find_spec(name)
    if spec is None or name == "trainmaster":
        return
    folders = [folder for folder in spec.submodule_search_locations or () if _is_in(root, folder)]
    found = [os.path.join(parent, file) for folder in folders for parent, _, files in os.walk(folder) for file in files]
    for path in found or [spec.origin or ""]:
        if path.endswith(".py") and _is_in(root, path):
            yield os.path.realpath(path)


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
