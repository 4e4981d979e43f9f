"""TARGET: the user's manager, as `package.module:name` or `file.py:name`. To find it, its code is imported."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import SettingError, did_you_mean, nearest

if TYPE_CHECKING:
    from trainmaster.manager import Manager

EXAMPLE = "`train.py:MyManager` or `package.module:MyManager`"


class Target(NamedTuple):
    """Where a manager is found; a file by its whole path, so that it is found again from any folder."""

    module: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> Target:
        module, colon, name = text.rpartition(":")
        if not colon:
            module, name = text, ""
        if not module or "\0" in text or (colon and not name.isidentifier()):
            raise SettingError(f"{text!r:.120} names no manager", hint=f"write {EXAMPLE}")
        if module.endswith(".py") or os.sep in module:
            if not os.path.isfile(module):
                folder = os.path.dirname(module) or "."
                files = [os.path.join(os.path.dirname(module), each) for each in _python_files(folder)]
                near = did_you_mean(module, files) or (f"there are {', '.join(files[:5])}" if files else f"write {EXAMPLE}")
                raise SettingError(f"there is no file `{module}`", hint=near)
            module = os.path.abspath(module)
        elif not all(part.isidentifier() for part in module.split(".")):
            raise SettingError(f"`{module}` is no module", hint=f"write {EXAMPLE}")
        return cls(module, name or None)

    @property
    def text(self) -> str:
        return f"{self.module}:{self.name}" if self.name else self.module

    def imported(self) -> Any:
        """What the target names: a manager, a class of managers, or a function that returns one."""
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        module = _import_file(self.module) if self.module.endswith(".py") or os.sep in self.module else _import_module(self.module)
        if self.name is None:
            return _only_manager(module, self.module)
        if not hasattr(module, self.name):
            near = did_you_mean(self.name, vars(module)) or f"it has {', '.join(_managers(module)) or 'no manager'}"
            raise SettingError(f"`{self.module}` has no `{self.name}`", hint=near)
        return getattr(module, self.name)

    def loop(self, config_of: Callable[[Manager], Any]) -> Any:
        """A loop to be looked at: the one that a function returns, or the one that a manager makes of a config; nothing is stored."""
        from trainmaster.loop import TrainManager, TrainTestLoop
        from trainmaster.manager import Manager

        named = self.imported()
        is_function = callable(named) and not isinstance(named, type | Manager | TrainManager | TrainTestLoop)
        made = named() if is_function and _can_be_called(named) else named
        if isinstance(made, TrainManager | TrainTestLoop):
            return made
        manager = made if isinstance(made, Manager) else self.manager(None)
        manager.hush()
        if not manager.makes_loops:
            raise SettingError(f"`{self.text}` has no `make_loop`", hint="write make_loop, or name a function that returns a TrainManager")
        return manager.loop_of(config_of(manager))

    def manager(self, store_dir: str | None, is_quiet: bool = False) -> Manager:
        """The manager, with its store at `store_dir`; one that was made already has its own."""
        from trainmaster.manager import Manager

        found = self.imported()
        if isinstance(found, type) and issubclass(found, Manager):
            manager: Any = found(store_dir)
        elif callable(found) and not isinstance(found, type | Manager):
            given = {"store_dir": store_dir} if _takes(found, "store_dir") else {}
            try:
                inspect.signature(found).bind(**given)
            except TypeError as error:
                raise SettingError(
                    f"`{self.text}` cannot be called: {error}", hint="wanted a function of `store_dir`, or of nothing"
                ) from None
            manager = found(**given)
        else:
            manager = found
        if not isinstance(manager, Manager):
            what = "a class" if isinstance(found, type) else f"{type(manager).__name__}"
            raise SettingError(
                f"`{self.text}` is {what}, and no manager", hint="wanted a Manager, a class of them, or a function that returns one"
            )
        if is_quiet:
            manager.hush()
        return manager


def _python_files(folder: str) -> list[str]:
    try:
        return sorted(each for each in os.listdir(folder) if each.endswith(".py"))
    except OSError:
        return []


def _import_file(path: str) -> ModuleType:
    """A file as the module of its name, which workers can import, too; its folder comes first in the path, as for `python file.py`."""
    name = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.dirname(path)
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    if known is not None:
        if os.path.abspath(getattr(known, "__file__", None) or "") == path:
            return known
        raise SettingError(f"`{path}` has the name of the module `{name}`, which is imported already", hint="give the file another name")
    if not name.isidentifier():
        raise SettingError(f"`{path}` cannot be imported: `{name}` is no name of a module", hint="give the file another name")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        files = [each.removesuffix(".py") for each in _python_files(".")]
        near = nearest(name, files)
        raise SettingError(f"there is no module `{name}`", hint=f"did you mean `{near[0]}.py`?" if near else f"write {EXAMPLE}") from None


def _managers(module: ModuleType) -> list[str]:
    from trainmaster.manager import Manager

    found = (name for name, each in vars(module).items() if isinstance(each, type) and issubclass(each, Manager))
    return [name for name in found if getattr(module, name).__module__ == module.__name__]


def _only_manager(module: ModuleType, text: str) -> Any:
    names = _managers(module)
    if len(names) == 1:
        return getattr(module, names[0])
    hint = f"write `{text}:{names[0]}`" if names else "write a subclass of trainmaster.Manager into it"
    raise SettingError(f"`{text}` has {len(names) or 'no'} managers{': ' + ', '.join(names) if names else ''}", hint=hint)


def _can_be_called(function: Any) -> bool:
    """Whether it can be called with nothing; one that takes a `store_dir` makes a manager."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return not _takes(function, "store_dir")


def _takes(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == name or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
