"""The program that started a run: the file and class of the manager (or the function `make_loop`), and digests of the source files.

A digest is computed from the syntax tree, so comments, docstrings and formatting make no difference. Each attempt records its program,
and trainmaster compares the record with the current program. This does not need git and does not import any code.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, Self

_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_BUDGET = 0.08
"""The time limit for parsing, in seconds.

In very large projects, files that were not parsed in time are compared byte by byte.
"""
_NO_FILE = "the code of the notebook"
"""Used in place of a file name for a class that was defined in a notebook, in the interpreter or by `exec`."""
_MAX_SIZE = 2_000_000
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_IGNORED_FIELDS = ("ctx", "type_comment", "kind", "type_ignores")


class Program(NamedTuple):
    """The code of a manager. Paths are relative to the root of the project, with slashes."""

    file: str
    """The file that defines the manager, or the function that returns the manager or its loops."""
    made_by: str
    """The function or object specified on the command line. Empty if the class itself was specified."""
    classes: tuple[str, ...]
    """The qualified names of the manager's class and of its base classes in user code, or of the function `make_loop`."""
    root: str
    """The root folder of the project when the program was recorded."""
    main: str
    """The script that was run. Empty if the script does not belong to the project."""
    files: Mapping[str, str]
    """For each file, the digests of its syntax tree and of its bytes, separated by a dot. The first is empty if the file was not parsed."""

    @classmethod
    def of(cls, definition: type | FunctionType, file: str | None = None, made_by: str = "", cells: str = "") -> Self:
        """Return the program of a loaded manager class or `make_loop`.

        `file` is the file of the TARGET on the command line, if it differs from the file of the definition. `cells` is the digest of a
        notebook that runs in a different process.
        """
        own = os.path.abspath(file) if file is not None else _file_of(sys.modules.get(definition.__module__))
        main = _file_of(sys.modules.get("__main__"))
        if own is None:
            folder = os.getcwd()
            found = {_NO_FILE: cells or cell_digest(definition)}
        else:
            folder, found = os.path.dirname(own), {}
        root = project_root(folder)
        below = root.rstrip(os.sep) + os.sep
        paths = [path for path in dict.fromkeys([own, *_loaded(below)]) if path is not None]
        started = time.thread_time()
        for path in paths:
            source = _source(path)
            if source is not None:
                is_cheap = time.thread_time() - started < _BUDGET or path == own
                found[_relative(path, root)] = source.digest if is_cheap else source.bytes_digest
        is_ours = main is not None and main.startswith(below) and _is_own(main)
        kinds = definition.__mro__ if isinstance(definition, type) else (definition,)
        names = tuple(each.__qualname__ for each in kinds if not each.__module__.startswith(("builtins", "trainmaster.")))
        script = _relative(main, root) if main and is_ours else ""
        return cls(_NO_FILE if own is None else _relative(own, root), made_by, names, root, script, found)

    @classmethod
    def from_record(cls, record: Any) -> Self | None:
        """Return the program in a record, or None if the record is missing or invalid."""
        if not isinstance(record, Mapping) or not isinstance(record.get("files"), dict) or not isinstance(record.get("classes"), list):
            return None
        file, made_by, root, main = (record.get(name) for name in ("file", "made_by", "root", "main"))
        files, classes = record["files"], record["classes"]
        if not all(isinstance(each, str) for each in [file, made_by, root, main, *classes, *files.values()]):
            return None
        return cls(str(file), str(made_by), tuple(classes), str(root), str(main), files)

    def to_record(self) -> dict[str, Any]:
        return {**self._asdict(), "classes": list(self.classes), "files": dict(self.files)}

    @property
    def title(self) -> str:
        """The name of the program in messages: `train.py:MyManager`."""
        return ":".join([self.file, *([self.made_by] if self.made_by else self.classes[:1])])

    def differs_from(self, before: Program) -> bool:
        """Return whether this is a different program from `before`: a different file, or a different class or function in that file.

        A file that was moved, copied or edited is treated as the same program, and so is a subclass or base class of the recorded class.
        A file with the same relative path in a different folder is a different program if the recorded file still exists unchanged.
        """
        if self.file == _NO_FILE or before.file == _NO_FILE or before.file not in before.files:
            return False
        path, old = os.path.join(self.root, self.file), os.path.join(before.root, before.file)
        if self._has(path, before.files[before.file]):
            return not self._is_related_to(before)
        if self.file != before.file:
            return True
        is_elsewhere = os.path.abspath(old) != os.path.abspath(path) and has_digest(old, before.files[before.file])
        return is_elsewhere or not (self._is_related_to(before) or not _defines(path, before.classes[0]))

    def _is_related_to(self, before: Program) -> bool:
        """Return whether the two managers have the same class name, or one derives from the other. Functions must have the same name."""
        if self.made_by and before.made_by and self.made_by != before.made_by:
            return False
        if not self.classes or not before.classes:
            return True
        return self.classes[0] in before.classes or before.classes[0] in self.classes

    def changed_since(self, before: Program) -> list[str]:
        """Return the files of `before` that have been changed or deleted since it was recorded.

        If the class is now a subclass or a base class of the recorded class, the list also contains the class.
        """
        found = [_NO_FILE] if _NO_FILE in self.files and _NO_FILE not in before.files else []
        for file, digest in before.files.items():
            if file == _NO_FILE:
                is_same = self.files.get(_NO_FILE) == digest
            else:
                is_same = self._has(os.path.join(self.root, file), digest) or (
                    file == before.file and self._has(os.path.join(self.root, self.file), digest)
                )
            found += [] if is_same else [file]
        is_derived = self.classes[:1] != before.classes[:1] and self._is_related_to(before)
        return [*found, f"{self.title} (was {before.title})"] if is_derived and self.title != before.title else found

    def is_other_script_than(self, before: Program) -> bool:
        """Return whether the script that runs the manager differs from the one in `before`. Another script may pass different arguments."""
        is_other = bool(self.main and before.main) and self.main != before.main and self.main not in before.files
        return is_other and before.main != before.file

    @staticmethod
    def _has(path: str, digest: str) -> bool:
        """Return whether the content of a file matches the digest. A file that exists but cannot be read is treated as unchanged."""
        source = _source(path)
        return os.path.exists(path) if source is None else source.is_like(digest)


def digest_of(path: str) -> str | None:
    """Return the digest of a source file, or None if the file cannot be read."""
    source = _source(path)
    return None if source is None else source.digest


def has_digest(path: str, digest: str) -> bool:
    """Return whether a file can be read and its content matches the digest."""
    source = _Source.read(path)
    return source is not None and source.is_like(digest)


def project_root(folder: str) -> str:
    """Return the nearest folder, starting at `folder` and going up, that looks like a project root. If there is none, return `folder`."""
    home, at = os.path.expanduser("~"), folder
    while at not in (home, os.path.dirname(at)):
        if any(os.path.exists(os.path.join(at, mark)) for mark in _ROOT_MARKS):
            return at
        at = os.path.dirname(at)
    return folder


class _Source:
    """The content of a source file, and its digests."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def read(cls, path: str) -> Self | None:
        try:
            if os.path.getsize(path) > _MAX_SIZE:
                return None
            with open(path, "rb") as file:
                return cls(file.read())
        except (OSError, ValueError):
            return None

    @cached_property
    def bytes_digest(self) -> str:
        return f".{_hash(self._data)}"

    @cached_property
    def tree_digest(self) -> str:
        try:
            words: list[str] = []
            _write(ast.parse(self._data), words)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
        return _hash("\0".join(words).encode("utf-8", "surrogatepass"))

    @property
    def digest(self) -> str:
        return self.tree_digest + self.bytes_digest

    def is_like(self, digest: str) -> bool:
        tree, _, data = digest.partition(".")
        return self.bytes_digest == f".{data}" or bool(tree and tree == self.tree_digest)


_sources: dict[str, tuple[Any, _Source | None]] = {}
"""Each source file by path, with the spec of its module. A file is read once per import, because it may be edited afterwards."""


def _source(path: str) -> _Source | None:
    """Return the current content of a source file or, for a loaded module, its content at the time it was first read."""
    known = _sources.get(path)
    return known[1] if known is not None else _Source.read(path)


def _loaded(below: str) -> list[str]:
    """Return the source files of all loaded modules below a folder, except installed packages."""
    found = []
    for module, path in _own_modules(below):
        spec = getattr(module, "__spec__", None)
        if path not in _sources or (spec is not None and _sources[path][0] is not spec and _sources[path][0] is not None):
            _sources[path] = (spec, _Source.read(path))
        found.append(path)
    for path in {each for each in _sources if each.startswith(below)}.difference(found):
        del _sources[path]  # the module was unloaded
    return sorted(found)


_known_modules: tuple[str, list[int], list[tuple[ModuleType, str]]] = ("", [], [])


def _own_modules(below: str) -> list[tuple[ModuleType, str]]:
    """Return the loaded modules whose files are below a folder, and these files. Installed packages are left out.

    The result is cached until the loaded modules change.
    """
    global _known_modules
    modules = list(sys.modules.values())
    ids = [*map(id, modules)]
    if _known_modules[:2] != (below, ids):
        files = [(module, path) for module in modules if (path := _file_of(module)) is not None]
        _known_modules = (below, ids, [(module, path) for module, path in files if path.startswith(below) and _is_own(path)])
    return _known_modules[2]


_INSTALLED = tuple(
    {f"{path.rstrip(os.sep)}{os.sep}" for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))}
    | {os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep}
)


def _is_own(path: str) -> bool:
    return not path.startswith(_INSTALLED) and not any(part in path for part in _PACKAGE_FOLDERS)


def _file_of(module: ModuleType | None) -> str | None:
    try:
        path = None if module is None else module.__dict__.get("__file__")
    except Exception:  # `sys.modules` may contain objects of any type
        return None
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    return path if path.startswith("/") and "/." not in path else os.path.abspath(path)


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


def _defines(path: str, name: str) -> bool:
    """Return whether a file defines a class or function with this name at the top level."""
    source = _Source.read(path)
    try:
        nodes = [] if source is None else ast.parse(source._data).body
        return any(isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name for node in nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _write(node: Any, words: list[str]) -> None:
    """Append a syntax tree without docstrings to `words`, in a form that does not depend on the Python version."""
    if isinstance(node, ast.AST):
        words.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in _IGNORED_FIELDS:
                continue
            if name == "body" and isinstance(value, list) and _is_docstring(value[0]):
                value = value[1:]
            if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty strings
                value = [each for each in value if not (isinstance(each, ast.Constant) and each.value == "")]
            words.append(name)
            _write(value, words)
    elif isinstance(node, list):
        words.append("[")
        for each in node:
            _write(each, words)
        words.append("]")
    else:
        words.append(repr(node))


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def cell_digest(definition: type | FunctionType) -> str:
    """Return a digest of a notebook's classes and functions, computed from bytecode and plain class attributes."""
    module = definition.__module__
    beside = vars(sys.modules[module]) if module in sys.modules else {}
    own = [value for value in beside.values() if getattr(value, "__module__", None) == module]
    words = {f"{value.__module__}.{value.__qualname__}": "" for value in [definition, *own] if isinstance(value, type | FunctionType)}
    for value in [*(definition.__mro__ if isinstance(definition, type) else [definition]), *own]:
        if isinstance(value, FunctionType):
            words[f"{value.__module__}.{value.__qualname__}"] = "\0".join(_words_of(value.__code__, value.__doc__))
        elif isinstance(value, type) and _file_of(sys.modules.get(value.__module__)) is None and value.__module__ != "builtins":
            words[f"{value.__module__}.{value.__qualname__}"] = "\0".join(_words_of_class(value))
    text = "\0".join(f"{name}\0{words[name]}" for name in sorted(words))
    return f".{_hash(text.encode('utf-8', 'surrogatepass'))}"


def _words_of_class(kind: type) -> Iterator[str]:
    for name, value in sorted(vars(kind).items()):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, FunctionType):
            yield from (name, *_words_of(function.__code__, function.__doc__))
        elif isinstance(value, bool | int | float | str | tuple | list | dict) and not name.startswith("__"):
            text = repr(value)
            yield from (name, text if " at 0x" not in text else "")


def _words_of(code: CodeType, docstring: str | None = None) -> Iterator[str]:
    yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _words_of(each)
        elif each is None or each is not docstring:
            yield repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)
