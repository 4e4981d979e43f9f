"""Imports objects by their paths, such as `torch.optim.SGD` and `lab.nets:Net`, and finds the paths of objects."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem, did_you_mean

_STDLIB = frozenset(sys.stdlib_module_names) - {"__main__"}


def import_object(path: Any) -> Any:
    """Import the object at a path such as `torch.optim.SGD` or `lab.nets:Net`."""
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.replace(":", ".").split(".")):
        raise ConfigError.of("an import path", [Problem("", "expected a path such as `package.module.name`", short_repr(path))])
    parts = path.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        try:
            value: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue  # not a module: the last parts of the path may be attributes of a module with a shorter path
            raise
        for number, part in enumerate(parts[count:], start=count):
            if not hasattr(value, part):
                hint = did_you_mean(part, dir(value))
                raise ConfigError.of("an import path", [Problem(path, f"`{'.'.join(parts[:number])}` has no `{part}`")], hint=hint)
            value = getattr(value, part)
        return value
    raise ConfigError.of("an import path", [Problem(path, f"there is no module `{parts[0]}`")])


def module_name(name: str) -> str:
    """Return the name under which another process can import a module.

    For `__main__`, this is the name of the program's file without `.py`, or the module name that was passed to `python -m`.
    """
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    return os.path.splitext(os.path.basename(getattr(main, "__file__", None) or "__main__"))[0]


def import_path_of(thing: Any) -> str:
    """Return the import path of a class or function, such as `lab.nets:Net`. Raise `ValueError` if another process cannot import it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if inspect.ismethod(thing):
        if not isinstance(thing.__self__, type):
            raise ValueError("it is a method of an object: pass a function, or override its method")
        return f"{import_path_of(thing.__self__)}.{thing.__name__}"
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it has no name, so it cannot be imported")
    if "<lambda>" in name:
        raise ValueError("it is a lambda, which has no name, so it cannot be imported")
    if "<locals>" in name:
        raise ValueError(f"`{name.rpartition('.')[2]}` is defined inside a function")
    if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(f"`{name}` is defined in a notebook or at a prompt")
    found: Any = sys.modules.get(module)
    if inspect.isbuiltin(thing) and getattr(found, name.rpartition(".")[2], None) is thing:
        name = name.rpartition(".")[2]  # such as `torch.tanh`, whose qualified name includes an internal class
    else:
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not thing:
            raise ValueError(f"`{module}:{name}` is a different object")
    importable = module_name(module)
    if not all(part.isidentifier() for part in importable.split(".")):
        raise ValueError(f"`{name}` is in the file {importable}.py, whose name cannot be imported")
    return f"{importable}:{name}"


def is_in_stdlib(path: str) -> bool:
    """Return whether an import path is in Python's standard library."""
    return path.partition(":")[0].partition(".")[0] in _STDLIB


def resolve_import_path(path: str) -> Any:
    """Import the object at a path that `import_path_of` returned. The object may be in the running program itself."""
    module, _, name = path.partition(":")
    if module != module_name("__main__"):
        return import_object(path)
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        if not hasattr(found, part):
            return import_object(path)  # the path comes from a different program with the same name
        found = getattr(found, part)
    return found
