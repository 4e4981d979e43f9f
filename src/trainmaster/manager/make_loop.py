"""Checks the function `make_loop(config)`, and finds the config class in its annotation."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

from trainmaster.config import ConfigBase
from trainmaster.errors import SettingError


def checked_function(make_loop: Any, kind: type, base: type) -> FunctionType:
    """Check the `make_loop` argument of a manager of class `kind`, and return it. `base` is the class `Manager`."""
    if kind is not base:
        raise SettingError(
            f"make_loop={make_loop!r:.60}: {kind.__name__} is a subclass of Manager", hint="write `make_loop(self, config)` as its method"
        )
    if not isinstance(make_loop, FunctionType):
        raise SettingError(
            f"make_loop={make_loop!r:.60}: expected a function that takes the config and returns a TrainManager",
            hint="write `def make_loop(config)`, and put everything that it needs into the config, which identifies a run",
        )
    try:
        inspect.signature(make_loop).bind(None)
    except TypeError as error:
        raise SettingError(
            f"`{make_loop.__name__}` cannot be called with a config: {error}", hint="write `def make_loop(config)`"
        ) from None
    return make_loop


def annotated_class(make_loop: Callable[..., Any]) -> type[ConfigBase] | None:
    """Return the config class in the annotation of `make_loop(config: Train)`, or None if there is none."""
    parameter = next(iter(inspect.signature(make_loop).parameters.values()), None)
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    alone = type("_", (), {"__annotations__": {"config": parameter.annotation}})
    try:
        found = typing.get_type_hints(alone, getattr(inspect.unwrap(make_loop), "__globals__", None))["config"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise SettingError(
            f"the annotation of `{parameter.name}` in `{make_loop.__qualname__}` cannot be read: {error}",
            why="without defaults, the annotation says which config class to use",
            hint="import the class at the top of the file, not only for type checkers, or give the manager `defaults`",
        ) from None
    return found if isinstance(found, type) and issubclass(found, ConfigBase) else None


def refuse_other_defaults(make_loop: FunctionType, defaults: Any) -> None:
    """Raise an error if `make_loop` is annotated with a config class, but the defaults have a different class."""
    wanted = annotated_class(make_loop)
    given = defaults if isinstance(defaults, type) else type(defaults)
    if wanted is not None and not issubclass(given, wanted):
        raise SettingError(
            f"`{make_loop.__name__}` takes a {wanted.__name__}, but the defaults are a {given.__name__}",
            hint=f"leave the defaults out, or give `{wanted.__name__}(...)`",
        )
