"""TARGET: the user's `make_loop` function or manager, written as `package.module:name` or `file.py:name`."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmaster.errors import SettingError, did_you_mean, nearest

if TYPE_CHECKING:
    from trainmaster.manager import Manager

EXAMPLE = "`train.py:make_loop` or `package.module:MyManager`"
_MAKE_LOOP = "make_loop"
_MAKE_MANAGER = "make_manager"


class Target(NamedTuple):
    """The name of a `make_loop` function or a manager. File paths are absolute, so they work from any folder."""

    module: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> Target:
        module, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
        if not module or "\0" in text or (colon and not name.isidentifier()):
            raise SettingError(f"{text!r:.120} is not a TARGET", hint=f"write {EXAMPLE}")
        if module.endswith(".py") or os.sep in module:
            if not os.path.isfile(module):
                files = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(module)), "*.py")))
                hint = did_you_mean(module, files) or (f"there are {', '.join(files[:5])}" if files else f"write {EXAMPLE}")
                raise SettingError(f"there is no file `{module}`", hint=hint)
            module = os.path.abspath(module)
        elif not all(part.isidentifier() for part in module.split(".")):
            raise SettingError(f"`{module}` is not the name of a module", hint=f"write {EXAMPLE}")
        return cls(module, name or None)

    @property
    def text(self) -> str:
        return f"{self.module}:{self.name}" if self.name else self.module

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py") or os.sep in self.module

    @property
    def file(self) -> str | None:
        """The source file of the target. If the target refers to a module, this is None until the module is imported."""
        return self.module if self.is_file else getattr(sys.modules.get(self.module), "__file__", None)

    def load(self) -> Any:
        """Import the object that the target refers to: `make_loop`, a manager, a manager class, or a function that returns a manager."""
        module = self._import()
        if self.name is None:
            return _find_only_target(module, self.module)
        if not hasattr(module, self.name):
            names = ", ".join(_find_targets(module)) or f"no manager and no {_MAKE_LOOP}"
            raise SettingError(f"`{self.module}` has no `{self.name}`", hint=did_you_mean(self.name, vars(module)) or f"it has {names}")
        return getattr(module, self.name)

    def load_manager(self, store_dir: str | None, is_quiet: bool = False) -> Manager:
        """Create the manager with a store at `store_dir`. If the target is already a manager object, it keeps its own store."""
        from trainmaster.manager import Manager

        loaded = self.load()
        if isinstance(loaded, type) and issubclass(loaded, Manager):
            manager: Any = loaded(store_dir)
        elif takes_config(loaded):
            manager = Manager(store_dir, self._find_defaults(loaded), make_loop=loaded)
        elif callable(loaded) and not isinstance(loaded, type | Manager):
            arguments = {"store_dir": store_dir} if _takes_store_dir(loaded) else {}
            try:
                inspect.signature(loaded).bind(**arguments)
            except TypeError as error:
                hint = "its parameter must be `config` or `store_dir`, or it must have none"
                raise SettingError(f"`{self.text}` cannot be called: {error}", hint=hint) from None
            manager = loaded(**arguments)
        else:
            manager = loaded
        if not isinstance(manager, Manager):
            raise self._not_a_manager(loaded, manager)
        if is_quiet:
            manager.job_runner.console.mute()
        return manager

    def load_loop(self, config_of: Callable[[Manager], Any]) -> tuple[Any, Any]:
        """Create a loop without a store: call the target if it is a function without parameters, or let the manager build the loop.

        Returns the loop and its config, which is None if the target does not take a config.
        """
        from trainmaster.loop import TrainManager, TrainTestLoop
        from trainmaster.manager import Manager

        loaded = self.load()
        if not isinstance(loaded, type | Manager | TrainManager | TrainTestLoop) and _takes_nothing(loaded):
            loaded = loaded()
        if isinstance(loaded, TrainManager | TrainTestLoop):
            return loaded, None
        manager = loaded if isinstance(loaded, Manager) else self.load_manager(None)
        manager.job_runner.console.mute()
        if not manager.has_make_loop:
            raise SettingError(f"`{self.text}` has no `make_loop`", hint="write make_loop, or name a function that returns a TrainManager")
        config = config_of(manager)
        return manager.job_runner.build_loop(config), config

    def _import(self) -> ModuleType:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return _import_file(self.module) if self.is_file else _import_module(self.module)

    def _find_defaults(self, make_loop: Any) -> Any:
        """Return the `defaults` of the target's module or, if it has none, those of the module that defines `make_loop`."""
        defaults = vars(self._import()).get("defaults")
        return inspect.unwrap(make_loop).__globals__.get("defaults") if defaults is None else defaults

    def _not_a_manager(self, loaded: Any, result: Any) -> SettingError:
        from trainmaster.loop import TrainManager, TrainTestLoop

        kind = result if isinstance(result, type) else type(result)
        if not issubclass(kind, TrainManager | TrainTestLoop):
            what = "a class" if isinstance(result, type) else kind.__name__
            hint = f"name a function `{_MAKE_LOOP}(config)` that returns a TrainManager, a Manager class, or a manager"
            return SettingError(f"`{self.text}` is {what}, not a manager", hint=hint)
        if result is not loaded:
            hint = f"give it a parameter: `def {self.name or _MAKE_LOOP}(config)`"
            return SettingError(f"`{self.text}` returns a loop, but does not take a config", hint=hint)
        return SettingError(
            f"`{self.text}` is a loop{' class' if isinstance(result, type) else ''}, but each config needs its own loop",
            hint=f"write a function `def {_MAKE_LOOP}(config)` that returns one, and name it: `{self.module}:{_MAKE_LOOP}`",
        )


def takes_config(function: Any) -> bool:
    """Return whether an object is a function such as `make_loop(config)`.

    This is the case if it has exactly one required parameter, or if all its parameters are optional and the first one is called `config`.
    """
    if not isinstance(function, FunctionType):
        return False
    parameters = [*inspect.signature(function).parameters.values()]
    first = next((each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)), None)
    if first is None or "store_dir" in [each.name for each in parameters]:
        return False
    required = [each for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return required == [first] or (not required and first.name == "config")


def _takes_nothing(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return not takes_config(function) and not _takes_store_dir(function)


def _takes_store_dir(function: Any) -> bool:
    """Return whether a function has a parameter `store_dir`. If it needs others too, the error message names them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == "store_dir" or each.kind is each.VAR_KEYWORD for each in parameters)


def _import_file(path: str) -> ModuleType:
    """Import a file under its own name, so that workers can import it too.

    The folder of the file is put first in `sys.path`, as with `python file.py`. `import_module` would not do: if there is
    a package with the same name in this folder, it would run the code of the package instead.
    """
    name = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.dirname(path)
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    if known is not None:
        if os.path.abspath(getattr(known, "__file__", None) or "") == path:
            return known
        raise SettingError(f"`{path}` has the name of the module `{name}`, which is already imported", hint="rename the file")
    if not name.isidentifier():
        raise SettingError(f"`{path}` cannot be imported: `{name}` is not a valid module name", hint="rename the file")
    importlib.invalidate_caches()  # modules next to the file may have been written a moment ago
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
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
        near = nearest(name, [each.removesuffix(".py") for each in glob.glob("*.py")])
        raise SettingError(f"there is no module `{name}`", hint=f"did you mean `{near[0]}.py`?" if near else f"write {EXAMPLE}") from None


def _find_targets(module: ModuleType) -> list[str]:
    """Return the possible targets that a module defines: manager classes, `make_loop(config)` and `make_manager(store_dir)`."""
    from trainmaster.manager import Manager

    own = {name: each for name, each in vars(module).items() if getattr(each, "__module__", None) == module.__name__}
    managers = [name for name, each in own.items() if isinstance(each, type) and issubclass(each, Manager)]
    makers = {_MAKE_LOOP: takes_config, _MAKE_MANAGER: _takes_store_dir}
    return [*managers, *(name for name, accepts in makers.items() if name in own and accepts(own[name]))]


def _find_only_target(module: ModuleType, text: str) -> Any:
    names = _find_targets(module)
    if len(names) == 1:
        return getattr(module, names[0])
    if names:
        raise SettingError(f"`{text}` has {len(names)} targets: {', '.join(names)}", hint=f"choose one: `{text}:{names[0]}`")
    raise SettingError(
        f"`{text}` has neither a function `{_MAKE_LOOP}(config)` nor a manager class",
        hint=f"write `def {_MAKE_LOOP}(config)`, which returns a TrainManager, or a subclass of trainmaster.Manager",
    )
