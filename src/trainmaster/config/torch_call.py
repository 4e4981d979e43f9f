"""Checks the arguments of torch classes against their signatures before an optimizer or schedule is built."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainmaster.config.config_base import ConfigBase
from trainmaster.config.value_table import IN_CODE, short_repr
from trainmaster.errors import ConfigError, Problem, did_you_mean


def argument_problems(target: Callable[..., Any], arguments: Mapping[str, Any], filled: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the problems that calling `target(**arguments)` would cause.

    `filled` contains the names of the parameters that the caller passes in addition to `arguments`.
    """
    parameters = inspect.signature(target).parameters
    called = getattr(target, "__name__", repr(target))
    names = [name for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and name not in filled]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    hints = _hints(target)
    for name, value in arguments.items():
        if name not in names and not takes_any:
            known = f"{did_you_mean(name, names)} it takes {', '.join(names)}".strip()
            yield Problem(f"arguments.{name}", f"{called} has no such argument; {known}", short_repr(value), is_unknown=True)
        elif name in hints and not _fits(value, hints[name]):
            yield Problem(f"arguments.{name}", f"{called} wants {_shown(hints[name])}", short_repr(value))
    for name in names:
        if parameters[name].default is inspect.Parameter.empty and name not in arguments:
            yield Problem(f"arguments.{name}", f"is missing; {called} needs it")


def first_parameter(target: Callable[..., Any], usual: str) -> str:
    """Return `usual` (such as `optimizer`) if `target` has a parameter with this name, otherwise the name of its first parameter."""
    parameters = inspect.signature(target).parameters
    return usual if usual in parameters else next(iter(parameters), usual)


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations that can be resolved. Annotations that use an import under `if TYPE_CHECKING:` are left out."""
    function: Any = target.__init__ if inspect.isclass(target) else target
    known = {**vars(typing), **vars(collections.abc), **getattr(function, "__globals__", {})}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, AttributeError, SyntaxError):
            hints |= typing.get_type_hints(type("_", (), {"__annotations__": {name: annotation}}), globalns=known)
    return hints


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a plain value has the annotated type.

    The value is validated as strict JSON: a list is accepted as a tuple, but text is not accepted as a number.
    """
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return True  # pydantic does not support this annotation
    try:
        read = adapter.validate_json(json.dumps(value), strict=True)
        if isinstance(read, Iterator):  # pydantic validates the elements of an `Iterable[int]` lazily
            list(read)
    except ValidationError as error:
        return all(line["type"] in ("needs_python_object", "callable_type", "is_instance_of") for line in error.errors())
    return True


def _shown(hint: Any) -> str:
    return str(hint).replace("typing.", "").replace("<class '", "").replace("'>", "")


def classes_in(module: Any, base: type) -> dict[str, Any]:
    """Return the public subclasses of `base` in a torch module, by their names in lower case."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base) and kind is not base]
    return {kind.__name__.lower(): kind for kind in kinds if not kind.__name__.startswith("_")}


def named(config: ConfigBase, what: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the class or function in `known` that `config.name` selects. `what` describes it in the error message."""
    name = config["name"]
    if name not in known:
        meant = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
        raise arguments_error(config, [Problem("name", f"no such {what}; {meant}", repr(name))])
    return known[name]


def build(config: ConfigBase, make: Callable[[], Any]) -> Any:
    """Return the result of `make()`. If torch rejects the arguments in `config`, raise a `ConfigError`."""
    try:
        return make()
    except ConfigError as error:
        raise arguments_error(config, [each._replace(key=f"arguments.{each.key}") for each in error.problems]) from None
    except Exception as error:  # torch classes raise exceptions of any type
        text = f"{config['name']} refuses them: {error}"
        raise arguments_error(config, [Problem("arguments", text, short_repr(config["arguments"]))]) from error


def arguments_error(config: ConfigBase, problems: Iterable[Problem]) -> ConfigError:
    """Create the error for `problems`. It shows the file position or override that each value came from."""
    return ConfigError.of(type(config).__name__, [each._replace(where=each.where or _origin(config, each.key)) for each in problems])


def _origin(config: ConfigBase, key: str) -> str:
    origins = (config.origin(name) for name in (key.partition(".")[0], "name"))  # `name` is the fallback if the arguments are defaults
    return next((each for each in origins if each != IN_CODE and not each.startswith("default of ")), "")
