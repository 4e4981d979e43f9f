"""Arguments for a class of torch, checked against its real signature before anything is built."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainmaster.config.describe import shorten
from trainmaster.errors import ConfigError, Problem, did_you_mean


def wrong_arguments(target: Callable[..., Any], arguments: Mapping[str, Any], given: tuple[str, ...]) -> Iterator[Problem]:
    """What is wrong with calling `target(**arguments)`, where `given` are the parameters that somebody else fills."""
    parameters = inspect.signature(target).parameters
    called = getattr(target, "__name__", repr(target))
    names = [name for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and name not in given]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    hints = _hints(target)
    for name, value in arguments.items():
        if name not in names and not takes_any:
            known = did_you_mean(name, names) or f"it takes {', '.join(names)}"
            yield Problem(f"arguments.{name}", f"{called} has no such argument; {known}", shorten(value), is_unknown=True)
        elif name in hints and not _fits(value, hints[name]):
            yield Problem(f"arguments.{name}", f"{called} wants {_shown(hints[name])}", shorten(value))
    for name in names:
        if parameters[name].default is inspect.Parameter.empty and name not in arguments:
            yield Problem(f"arguments.{name}", f"is missing; {called} needs it")


def first_parameter(target: Callable[..., Any], usual: str) -> str:
    """The parameter that takes what comes first: `usual` if there is one of that name, else the first."""
    parameters = inspect.signature(target).parameters
    return usual if usual in parameters else next(iter(parameters), usual)


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations that can be read; one that names what only a type checker imports may be left out."""
    function: Any = target.__init__ if inspect.isclass(target) else target
    known = {**vars(typing), **vars(collections.abc), **getattr(function, "__globals__", {})}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, AttributeError, SyntaxError):
            hints |= typing.get_type_hints(type("_", (), {"__annotations__": {name: annotation}}), globalns=known)
    return hints


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of the annotated type: as strict JSON, so that a list is a tuple and text is no number."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return True  # an annotation that pydantic cannot read is no reason to refuse
    try:
        read = adapter.validate_json(json.dumps(value), strict=True)
        if isinstance(read, Iterator):  # of an `Iterable[int]` only the elements tell
            list(read)
    except ValidationError as error:
        return all(line["type"] in ("needs_python_object", "callable_type", "is_instance_of") for line in error.errors())
    return True


def _shown(hint: Any) -> str:
    return str(hint).replace("typing.", "").replace("<class '", "").replace("'>", "")


def kinds_in(module: Any, base: type) -> dict[str, Any]:
    """The public subclasses of `base` in a module of torch, by name."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base) and kind is not base]
    return {kind.__name__: kind for kind in kinds if not kind.__name__.startswith("_")}


def refused(name: str, arguments: Mapping[str, Any], build: Callable[[], Any]) -> list[Problem]:
    """What torch itself says against `arguments`, if `build()` uses them."""
    try:
        build()
    except ConfigError as error:
        return [each._replace(key=f"arguments.{each.key}") for each in error.problems]
    except Exception as error:  # whatever torch finds wrong with them
        return [Problem("arguments", f"{name} refuses them: {error}", shorten(arguments))]
    return []
